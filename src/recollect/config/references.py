"""Settings that may name your own code, and how such names are converted when files are read and written.

A relative path in a recipe is relative to the recipe's folder, everywhere else to the current folder. ``config.yaml`` of a
run keeps absolute paths; references read from it are sealed (``common/plugins.py``) and followed only with ``--trust``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from recollect.common import plugins
from recollect.config.schema import Config


def with_names(config: Config, change: Callable[[str], str]) -> Config:
    """``config`` with ``change`` applied to every name that can be a reference, names among a loss's options included."""
    names = (config.data.name, config.data.augmentation, config.model.init, config.loss.name, config.run.select)
    if not any(":" in name for name in (*names, *config.run.loggers)) and not config.loss.options:
        return config  # only names of recollect and of installed packages
    return replace(
        config,
        data=replace(config.data, name=change(config.data.name), augmentation=change(config.data.augmentation)),
        model=replace(config.model, init=change(config.model.init)),
        loss=replace(
            config.loss, name=change(config.loss.name), options=plugins.in_strings(config.loss.options, change)
        ),
        run=replace(
            config.run,
            select=change(config.run.select),
            loggers=tuple(change(name) for name in config.run.loggers),
            logger_options={change(name): options for name, options in config.run.logger_options.items()},
        ),
    )


def anchored_names(config: Config) -> Config:
    """``config`` with absolute paths in references, as a run stores them."""
    return with_names(config, lambda name: plugins.absolute_reference(name, Path.cwd()))


def sealed_names(config: Config) -> Config:
    """``config`` as read from a run, which may be someone else's: its references are followed only with ``--trust``."""
    return with_names(config, plugins.mark_untrusted)


def short_names(config: Config) -> Config:
    """``config`` to be shown to others: references without folders of this machine and without marks of ``sealed_names``."""
    return with_names(config, plugins.short)
