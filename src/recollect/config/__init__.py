"""The settings of a training run: schema, recipes, overrides, and automatic settings.

``schema.py`` has one frozen dataclass per component; ``overrides.py`` turns a recipe and the user's settings into a
``Config``; ``automatic.py`` chooses values for settings that are ``"auto"`` and gives a reason for each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from recollect.common import lazy_names

if TYPE_CHECKING:
    from recollect.config.overrides import resolve as resolve, with_settings as with_settings
    from recollect.config.schema import Config as Config

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
