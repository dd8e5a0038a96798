"""Runs the named benchmarks, or all of them, each in a process of its own: ``python -m benchmarks [name …] [--option …]``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

if __name__ == "__main__":
    available = sorted(
        p.stem for p in Path(__file__).parent.glob("*.py") if not p.stem.startswith("_") and p.stem != "timing"
    )
    options = [word for word in sys.argv[1:] if word.startswith("--")]
    names = [word for word in sys.argv[1:] if word not in options] or available
    unknown = [name for name in names if name not in available]
    if unknown:
        sys.exit(f"no benchmark {', '.join(unknown)}: there are {', '.join(available)}")
    failed = [
        name for name in names if subprocess.run([sys.executable, "-m", f"benchmarks.{name}", *options]).returncode
    ]
    sys.exit(f"failed: {', '.join(failed)}" if failed else 0)
