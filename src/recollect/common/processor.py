"""Half precision on this CPU: tested once in a child process before it is used, and the result is stored.

Some virtual machines report instructions that they cannot run. On a processor that wrongly reports AMX, torch's first
bf16 product ends the process (SIGILL), or oneDNN fails at everything afterwards, and only a test can detect it. So code
that computes in half precision on a CPU calls ``check_half_precision`` first. If the child dies, a lower limit on oneDNN's
instructions is tried (``ONEDNN_MAX_CPU_ISA``) and set for this process and its children.

oneDNN reads that variable once, when torch first multiplies or convolves, in any precision (importing torch, filling
weights and element-wise arithmetic do not count: torch 2.13, oneDNN 3.12). Afterwards it is too late, and the error says
what to set. Importing this module does not import torch.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from recollect.common.errors import ConfigError, DataError
from recollect.common.files import cache_folder, write_json
from recollect.common.locks import exclusive
from recollect.common.reading import read_json

if TYPE_CHECKING:
    import torch
    from torch import nn

VARIABLE = "ONEDNN_MAX_CPU_ISA"
LIMITS = ("AVX512_CORE_BF16", "AVX512_CORE", "AVX2")
"""Its values to try, fastest first: without AMX and AVX-512 FP16, without AVX-512 BF16, without AVX-512."""

_CHILD = "from recollect.common.processor import try_half_precision; try_half_precision()"
_SECONDS = 120.0  # a child takes 3 s on an idle machine, most of it for importing torch

_sound: set[str | None] = set()  # values of the variable that were found to work, in this process


@dataclass(frozen=True)
class ProbeOutcome:
    """How a child ended.

    Attributes:
        works: it computed everything.
        how: what happened otherwise, as the end of a sentence that begins with "a test".
        final: whether the same would happen again; a child that took too long may have run on a busy machine.
    """

    works: bool
    how: str = ""
    final: bool = True


def check_half_precision(model: nn.Module, autocast: torch.dtype | None = None) -> None:
    """Call before ``model`` computes. Returns at once unless it is on a CPU and uses bfloat16 or float16.

    Args:
        model: the network; in half precision if one of its parameters is.
        autocast: the autocast type it will use; by default the active one.

    Raises:
        ConfigError: half precision does not work on this processor, or only if an environment variable is set before
            Python starts.
    """
    import torch

    parameters = list(model.parameters())
    if any(parameter.device.type != "cpu" for parameter in parameters[:1]):
        return
    if autocast is None and torch.is_autocast_enabled("cpu"):
        autocast = torch.get_autocast_dtype("cpu")
    half = (torch.bfloat16, torch.float16)
    if autocast in half or any(parameter.dtype in half for parameter in parameters):
        prepare_half_precision()


def prepare_half_precision(child: Sequence[str] | None = None, seconds: float = _SECONDS) -> None:
    """Make sure that half precision works on this CPU, with a limit on oneDNN's instructions if necessary.

    The first call on a machine starts a child process (about 3 s); later calls read the stored result.

    Args:
        child: the command of the child; exit code 0 means that half precision works.
        seconds: how long it may take.

    Raises:
        ConfigError: as for ``check_half_precision``.
    """
    wanted = os.environ.get(VARIABLE)
    if wanted in _sound:
        return
    first = _outcome(wanted, child, seconds)
    if not first.works:
        problem = f"half precision (bf16, fp16) fails on this processor, {processor_name()}: a test {first.how}"
        limit = next((limit for limit in LIMITS if limit != wanted and _outcome(limit, child, seconds).works), None)
        if limit is None:
            raise ConfigError(f"{problem}, also with {VARIABLE}={LIMITS[-1]}. Use float32 (run.precision=fp32).")
        if not _set_limit(limit):
            raise ConfigError(
                f"{problem}. It works with fewer instructions, but torch has already computed in this process: set the "
                f"environment variable {VARIABLE}={limit} before Python starts, or use float32 (run.precision=fp32)."
            )
    _sound.add(os.environ.get(VARIABLE))


def set_remembered_limit() -> None:
    """Set the limit that an earlier test on this machine found necessary, if any. Takes milliseconds, starts no process.

    For the beginning of a program, before torch computes: half precision is then possible at any later time. Only
    processors that report AMX are checked.
    """
    if not announces_amx():
        return
    known = _remembered(_file(os.environ.get(VARIABLE)))
    if known is not None and not known.works:
        for limit in LIMITS:
            other = _remembered(_file(limit))
            if other is not None and other.works:
                os.environ[VARIABLE] = limit
                return


def announces_amx(root: Path = Path("/")) -> bool:
    """Whether this processor reports Intel's matrix unit, which some virtual machines report wrongly.

    Args:
        root: the root of the system's files.
    """
    return any(flag.startswith("amx") for flag in _cpuinfo(root).get("flags", "").split())


def processor_name(root: Path = Path("/")) -> str:
    """The processor's display name, e.g. ``Intel(R) Xeon(R) Platinum 8481C``.

    Args:
        root: the root of the system's files.
    """
    return _cpuinfo(root).get("model name") or platform.processor() or platform.machine()


def try_half_precision() -> None:
    """The work of the child: a network's products in half precision, forward and backward, then in float32.

    float32 comes last because oneDNN may survive the first half-precision product and fail at everything after it.
    """
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource  # not on Windows

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a child that is expected to die should leave no core file
    import torch
    from torch import nn

    torch.manual_seed(0)
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        network = nn.Sequential(
            nn.Conv2d(16, 64, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(64, 64, 3, groups=64),
            nn.Flatten(),
            nn.Linear(2304, 64),
        )
        network.to(dtype=dtype, memory_format=torch.channels_last)  # type: ignore[call-overload]
        images = torch.randn(32, 16, 8, 8, dtype=dtype).contiguous(memory_format=torch.channels_last).requires_grad_()
        tokens = torch.randn(4, 2, 64, 32, dtype=dtype, requires_grad=True)
        try:
            vectors = network(images)
            (vectors @ vectors.T).float().mean().backward()
            nn.functional.scaled_dot_product_attention(tokens, tokens, tokens).float().sum().backward()
        except RuntimeError as error:
            # A type that torch does not support is refused before any instruction runs; users of it get the same error.
            if "not implemented" not in str(error):
                raise


def _outcome(limit: str | None, child: Sequence[str] | None, seconds: float) -> ProbeOutcome:
    """The stored outcome, or that of a test now, which is then stored."""
    path = _file(limit)
    with contextlib.ExitStack() as stack:
        if (known := _remembered(path)) is not None:
            return known
        with contextlib.suppress(OSError, DataError):  # a cache that cannot be written: every process runs its own test
            stack.enter_context(exclusive(path.with_suffix(".lock")))
        if (known := _remembered(path)) is not None:  # stored by another process that we waited for
            return known
        found = _try_in_child(limit, child, seconds)
        if found.final:
            with contextlib.suppress(OSError, DataError):
                write_json(path, {**asdict(found), **_identity(limit)})
        return found


def _try_in_child(limit: str | None, child: Sequence[str] | None, seconds: float) -> ProbeOutcome:
    # -P: do not import a file torch.py from the current folder.
    command = child or [sys.executable, "-P", "-c", _CHILD]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"}
    environment.pop(VARIABLE, None)
    if limit is not None:
        environment[VARIABLE] = limit
    try:
        done = subprocess.run(
            command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired:
        return ProbeOutcome(False, f"in a child process took more than {seconds:g} s", final=False)
    except OSError as error:
        return ProbeOutcome(False, f"in a child process could not be started ({error})", final=False)
    if done.returncode == 0:
        return ProbeOutcome(True)
    if done.returncode < 0:
        with contextlib.suppress(ValueError):
            return ProbeOutcome(False, f"in a child process ended with {signal.Signals(-done.returncode).name}")
    last = done.stderr.decode("utf-8", "replace").strip().splitlines()[-1:]
    return ProbeOutcome(False, f"in a child process ended with code {done.returncode}{f' ({last[0]})' if last else ''}")


def _set_limit(limit: str) -> bool:
    """Set the variable; returns False and leaves it unchanged if this process may already have read it."""
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = limit
    if "torch" not in sys.modules or _limit_holds(limit):
        return True
    if before is None:
        del os.environ[VARIABLE]
    else:
        os.environ[VARIABLE] = before
    return False


def _limit_holds(limit: str) -> bool:
    """Whether oneDNN in this process certainly respects the limit; asking makes it read the variable."""
    import torch

    try:
        bf16 = torch.ops.mkldnn._is_mkldnn_bf16_supported()  # AVX-512 or more
        fp16 = torch.ops.mkldnn._is_mkldnn_fp16_supported()  # AVX-512 FP16 or more, which oneDNN's use of AMX requires
    except (AttributeError, RuntimeError):
        return False
    if limit == "AVX2":
        return not bf16
    return "avx512_fp16" in _cpuinfo().get("flags", "").split() and not fp16


def _remembered(path: Path) -> ProbeOutcome | None:
    try:
        found = read_json(path, dict)
        return ProbeOutcome(found["works"] is True, str(found["how"]))
    except (DataError, KeyError):  # not there, or damaged
        return None


def _file(limit: str | None) -> Path:
    digest = hashlib.sha256(json.dumps(_identity(limit)).encode()).hexdigest()
    return cache_folder() / "processor" / f"{digest[:24]}.json"


def _identity(limit: str | None) -> dict[str, str]:
    """Everything the outcome of a test depends on."""
    try:
        version = metadata.version("torch")
    except metadata.PackageNotFoundError:
        version = "unknown"
    flags = _cpuinfo().get("flags", "")
    return {
        "machine": f"{platform.node()} {platform.machine()} {platform.release()}",
        "processor": processor_name(),
        "flags": hashlib.sha256(flags.encode()).hexdigest(),
        "torch": version,
        "limit": limit or "",
    }


def _cpuinfo(root: Path = Path("/")) -> dict[str, str]:
    """The lines of the first processor; empty if the system has no such file."""
    found: dict[str, str] = {}
    with contextlib.suppress(OSError, UnicodeDecodeError), (root / "proc/cpuinfo").open(encoding="utf-8") as lines:
        for line in lines:
            name, _, value = line.partition(":")
            if not name.strip():  # the next processor begins: with hundreds of them the whole file takes long to read
                break
            found[name.strip()] = value.strip()
    return found
