"""How a run is resumed: the command that is printed, what the manifest notes, and what a full disk does not lose."""

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
    """How a run is resumed: in Python if objects were handed over, with ``--trust`` if it names code from outside."""
    if any(loaded.reference.startswith(f"{doors.GIVEN}:") for loaded in outside):
        return f"recollect.train(resume={str(run)!r}, …) in Python, with the same objects"
    trust = " --trust" if any(doors.is_reference(loaded.reference) for loaded in outside) else ""
    return f"recollect train --resume {run}{trust}"


def note_resumption(folder: RunFolder, outside: Sequence[doors.Loaded]) -> None:
    """Say in the manifest when a run was resumed, and aloud which code from outside has changed since it began."""
    manifest = folder.read_manifest()
    folder.update_manifest(resumed=[*manifest.get("resumed", []), now()])
    for line in doors.changes(manifest.get("outside", []), outside):
        logger.warning(line)
        folder.append_log(line)


@contextlib.contextmanager
def resumable(how: str) -> Iterator[None]:
    """A full disk ends a run, but loses nothing of it."""
    try:
        yield
    except StorageError as error:
        advice = f"The run is safe up to its last checkpoint and goes on from there: {how}"
        raise error.with_advice(advice) from error
