"""From a folder to a search service: ``Index``, its stores, and serving. Start with ``Index``.

Names are imported when first used, so that the command line's ``--help`` does not wait for torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from recollect.common import lazy_names

if TYPE_CHECKING:
    from recollect.search.commands import QueryResult as QueryResult
    from recollect.search.exact import nearest as nearest
    from recollect.search.index import Index as Index, OtherModelError as OtherModelError
    from recollect.search.stores.base import (
        IndexBusyError as IndexBusyError,
        Item as Item,
        Match as Match,
        Store as Store,
        StoreError as StoreError,
        open_store as open_store,
    )

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
