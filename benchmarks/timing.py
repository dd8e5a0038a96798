"""What every benchmark shares: interleaved timing, peak memory, a table, a JSON file beside it."""

from __future__ import annotations

import ctypes
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch

RESULTS = Path(__file__).parent / "results"


class Seconds(NamedTuple):
    """What a case took: on the clock, and of all processors together, which other processes disturb less."""

    wall: float
    processor: float


def interleaved(cases: dict[str, Callable[[], object]], repeats: int = 5) -> dict[str, Seconds]:
    """Seconds of each case: the median over rounds in which every case runs once, so that a busy moment hits all."""
    for run in cases.values():
        run()
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in cases}
    for _ in range(repeats):
        for name, run in cases.items():
            wall, processor = time.perf_counter(), time.process_time()
            run()
            times[name].append((time.perf_counter() - wall, time.process_time() - processor))
    return {name: Seconds(*map(statistics.median, zip(*values, strict=True))) for name, values in times.items()}


def processor_name() -> str:
    """The processor by its model, and the widest vector instructions it has."""
    information = Path("/proc/cpuinfo")
    text = information.read_text() if information.exists() else ""
    models = [line.split(":", 1)[1].strip() for line in text.splitlines() if line.startswith("model name")]
    model = models[0] if models else platform.processor() or platform.machine()
    return f"{model}, {os.cpu_count()} cores, {torch.backends.cpu.get_cpu_capability()}"


def peak_mib() -> float:
    """The most memory this process has held so far, or since ``reset_peak`` where the system allows that (Linux)."""
    status = Path("/proc/self/status")
    if status.exists():
        return (
            float(next(line.split()[1] for line in status.read_text().splitlines() if line.startswith("VmHWM"))) / 1024
        )
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def reset_peak() -> float:
    """Start measuring the peak anew; the memory held now, in MiB."""
    clear = Path("/proc/self/clear_refs")
    if clear.exists():
        ctypes.CDLL(None).malloc_trim(0)  # what was freed before must not hide what is needed now
        clear.write_text("5")
    return peak_mib()


def in_fresh_process(module: str, *arguments: str, timeout: float = 1800) -> dict[str, float] | None:
    """Run ``python -m module arguments`` and read the JSON of its last line; None if it died (out of memory, say)."""
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
    if done.returncode:
        return None
    result: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def report(name: str, rows: list[dict[str, object]]) -> None:
    """Print rows as a table and keep them as ``benchmarks/results/NAME.json``."""
    columns = list(rows[0])
    text = [[_cell(row.get(c)) for c in columns] for row in rows]
    widths = [max(len(c), *(len(line[i]) for line in text)) for i, c in enumerate(columns)]
    for line in [columns, *text]:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
    machine = {"processor": processor_name(), "threads": torch.get_num_threads(),
               "torch": torch.__version__}  # fmt: skip
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps({"machine": machine, "rows": rows}, indent=2) + "\n")


def _cell(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
