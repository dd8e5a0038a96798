from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from recollect.common.locks import exclusive, is_free, try_lock

HOLD = """
import sys, time
from recollect.common.locks import try_lock
lock = try_lock(sys.argv[1])
print("held", flush=True)
time.sleep(600)
"""


def test_a_lock_is_held_by_one_process_and_free_when_it_dies(tmp_path: Path) -> None:
    path = tmp_path / "new" / "lock"
    assert not is_free(path)  # never taken
    with subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert try_lock(path) is None
        assert try_lock(path, wait=0.1) is None
        assert not is_free(path)
        process.kill()
    assert is_free(path)
    assert path.exists()  # another process may be waiting on it


def test_closing_releases(tmp_path: Path) -> None:
    lock = try_lock(tmp_path / "lock")
    assert lock is not None
    assert try_lock(tmp_path / "lock") is None
    with lock:
        pass
    with exclusive(tmp_path / "lock"):
        assert try_lock(tmp_path / "lock") is None
    assert is_free(tmp_path / "lock")
