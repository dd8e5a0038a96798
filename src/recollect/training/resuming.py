"""Resuming a run: its settings, the command to print, the entry in the manifest, and the advice for a full disk."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from recollect.common import plugins
from recollect.common.errors import ConfigError, DataError, StorageError
from recollect.common.images import MAX_PIXELS
from recollect.config.resolve import changeable_settings, with_changes, with_settings
from recollect.config.schema import Config
from recollect.inference.models import absolute_roots, refuse_moved, relative_roots
from recollect.training.run_folder import RunFolder, now

logger = logging.getLogger(__name__)


def resume_command(run: Path, outside: Sequence[plugins.Loaded] = ()) -> str:
    """How to resume a run: in Python if objects were passed, with ``--trust`` if it names code from outside."""
    if any(loaded.reference.startswith(f"{plugins.GIVEN}:") for loaded in outside):
        return f"recollect.train(resume={str(run)!r}, …) in Python, with the same objects"
    trust = " --trust" if any(plugins.is_reference(loaded.reference) for loaded in outside) else ""
    return f"recollect train --resume {run}{trust}"


def resumed_config(run: RunFolder, settings: Mapping[str, Any] | Iterable[str] = ()) -> Config:
    """The configuration of a run to resume; ``settings``: those of ``CHANGEABLE``.

    That the training images are still the same is checked when they are loaded (``refuse_other_training_images``).

    Raises:
        ConfigError: other settings. DataError: its images moved, or some of them would be refused.
    """
    before = run.read_config()
    config = with_changes(before, settings, "a resumed run keeps its own settings")
    refuse_moved(config.data)
    least = before.data.max_pixels or MAX_PIXELS
    if (config.data.max_pixels or MAX_PIXELS) < least:
        raise DataError(
            f"{run.path} was started with images of up to {least:,} pixels, and some of them may have more than "
            f"{config.data.max_pixels:,}: give --max-pixels {least} or more, or none."
        )
    return config


def note_resumption(folder: RunFolder, config: Config, outside: Sequence[plugins.Loaded]) -> None:
    """Record that a run was resumed and where its images are now, and report code from outside that has changed."""
    manifest = folder.read_manifest()
    with plugins.trusting():  # the references are only written back
        before = folder.read_config()
        now_read = with_settings(before, changeable_settings(config))
        if now_read != before:
            folder.write_config(now_read)
    place = {"root": absolute_roots(config.data).root, "relative": relative_roots(config.data, folder.path)}
    folder.update_manifest(resumed=[*manifest.get("resumed", []), now()], data={**manifest.get("data", {}), **place})
    for line in plugins.changed_code(manifest.get("outside", []), outside):
        logger.warning(line)
        folder.append_log(line)


def refuse_other_weights(run: RunFolder, digest: str | None) -> None:
    """Check that a run starts from the weights that it was started with; their file may have been replaced.

    Args:
        run: the run to resume, or to repeat on all classes.
        digest: SHA-256 of the weights; None if there are none.

    Raises:
        ConfigError: others are recorded.
    """
    known = run.read_manifest().get("weights") or {}
    before = str(known.get("sha256") or "")
    if before and before != digest:
        these = "random ones" if digest is None else f"{digest[:16]}…"
        raise ConfigError(
            f"{run.path} was started from other weights: {known.get('file')} with the SHA-256 {before[:16]}…, not {these}. "
            "Name their file with --weights PATH, or start a new run."
        )


@contextlib.contextmanager
def resumable(how: str) -> Iterator[None]:
    """A full disk ends a run, but its last checkpoint is safe; add how to resume to the error."""
    try:
        yield
    except StorageError as error:
        advice = f"The run is safe up to its last checkpoint. Resume it with: {how}"
        raise error.with_advice(advice) from error
