"""Resuming a run: the command to print, the entry in the manifest, and the advice for a full disk."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

from recollect.common import doors
from recollect.common.refusals import StorageError
from recollect.training.run_folder import RunFolder, now

logger = logging.getLogger(__name__)


def resume_command(run: Path, outside: Sequence[doors.Loaded] = ()) -> str:
    """How to resume a run: in Python if objects were passed, with ``--trust`` if it names code from outside."""
    if any(loaded.reference.startswith(f"{doors.GIVEN}:") for loaded in outside):
        return f"recollect.train(resume={str(run)!r}, …) in Python, with the same objects"
    trust = " --trust" if any(doors.is_reference(loaded.reference) for loaded in outside) else ""
    return f"recollect train --resume {run}{trust}"


def note_resumption(folder: RunFolder, outside: Sequence[doors.Loaded]) -> None:
    """Record in the manifest when a run was resumed, and report code from outside that has changed since it began."""
    manifest = folder.read_manifest()
    folder.update_manifest(resumed=[*manifest.get("resumed", []), now()])
    for line in doors.changes(manifest.get("outside", []), outside):
        logger.warning(line)
        folder.append_log(line)


@contextlib.contextmanager
def resumable(how: str) -> Iterator[None]:
    """A full disk ends a run, but its last checkpoint is safe; add how to resume to the error."""
    try:
        yield
    except StorageError as error:
        advice = f"The run is safe up to its last checkpoint. Resume it with: {how}"
        raise error.with_advice(advice) from error
