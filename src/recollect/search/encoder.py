"""Images to vectors for an index and its service: uploads to pixels, pixels to vectors.

An index needs three things of a model: vectors, their length, and a fingerprint that identifies it. Any object with
these three (``Encoder``) can fill an index; ``open_encoder`` makes one from a run, a saved embedder or an initialisation.
No other file of ``search`` uses models.

Uploads are decoded in processes of their own (``Decoder``), which are killed when they take too long: an image can be built
to keep its decoder busy for a minute. A thread would hold Python's lock meanwhile, so that every other client waits, and
could not be stopped. Run as a program, this file is such a process: it reads images from its standard input and writes their
pixels to its standard output.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import signal
import struct
import subprocess
import sys
import threading
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from queue import SimpleQueue
from typing import IO, TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from recollect.common.errors import DataWarning, ImageError, InputError
from recollect.common.images import read_image, set_max_pixels
from recollect.common.reading import read_json

if TYPE_CHECKING:
    from recollect.inference.models import LoadedModel
    from recollect.models import Embedder

OnBad = Callable[[int, ImageError], None]
CALIBRATION = "calibration.json"
"""The thresholds of a model, in its folder (see ``thresholds``)."""

# So few files, such as the queries of a search, are not looked up in the store of vectors, which hashes the weights: with
# Lite0 on one core a new photo takes 0.10 s instead of 0.22 s, and one that the store has 0.08 s instead of 0.06 s.
_FEW = 8


@runtime_checkable
class Encoder(Protocol):
    """Turns images into vectors.

    Attributes:
        dim: length of a vector.
        fingerprint: changes when weights or preprocessing change, and only then.
        provenance: plain values that say what it is and open it again: ``model``, ``weights``, ``name``.
    """

    dim: int
    fingerprint: str
    provenance: dict[str, Any]

    def embed(self, images: Sequence[Any], on_bad: OnBad | None = None) -> NDArray[np.float32]:
        """N images (paths, bytes, PIL images, uint8 arrays) → N × dim vectors of length 1.

        An image that cannot be read raises its ``ImageError``; with ``on_bad`` that is called with its number and the
        error, and its row is NaN.
        """


class ModelEncoder:
    """An ``Embedder`` as an ``Encoder``. For many files, it reuses vectors that any command has computed before.

    Args:
        embedder: the network.
        provenance: see ``Encoder``.
        opened: where the network came from, if known.
        device: where to compute. batch_size: images per batch.
        keep: keep the vectors of files for other commands, too; an index keeps its vectors itself.
    """

    def __init__(
        self,
        embedder: Embedder,
        provenance: dict[str, Any],
        *,
        opened: LoadedModel | None = None,
        device: str | None = None,
        batch_size: int | None = None,
        keep: bool = False,
    ) -> None:
        self._embedder, self._opened, self._keep = embedder, opened, keep
        self._options: dict[str, Any] = {"batch_size": batch_size, "device": device}
        self.dim, self.at_least = int(embedder.dim), embedder.preprocessing.at_least
        self.fingerprint = fingerprint(embedder)
        self.provenance = {**provenance, "name": embedder.config.init}

    def embed(self, images: Sequence[Any], on_bad: OnBad | None = None) -> NDArray[np.float32]:
        """Vectors of images."""
        if len(images) <= _FEW or not all(isinstance(image, str | Path) for image in images):
            policy: Any = "error"
            if on_bad is not None:
                policy = lambda bad: on_bad(bad.index, ImageError(bad.reason, bad.kind, bad.name))  # noqa: E731
            options = {**self._options, "batch_size": self._options["batch_size"] or 64}
            rows = self._embedder.embed(images, progress=False, on_bad_image=policy, **options)
            return np.asarray(rows.numpy())
        from recollect.inference.vectors import embed_files

        paths = list(map(Path, images))
        policy = "error" if on_bad is None else "skip"
        frozen = None if self._opened is None else self._opened.frozen
        options = {"frozen": frozen, "keep": self._keep, "on_bad_image": policy, **self._options}
        vectors = embed_files(self._embedder, paths, **options)
        skipped = {bad.name: bad for bad in vectors.skipped}
        for number, path in enumerate(paths if on_bad is not None and skipped else ()):
            if (bad := skipped.get(str(path.absolute()))) is not None:
                on_bad(number, ImageError(bad.reason, bad.kind, bad.name))  # type: ignore[misc]
        return vectors.rows


def open_encoder(
    model: str | Path | Embedder | Encoder,
    weights: str | None = None,
    *,
    device: str | None = None,
    batch_size: int | None = None,
    download: bool = False,
    keep: bool = False,
    precision: str | None = None,
) -> Encoder:
    """An encoder from a run, the folder of a saved embedder, an initialisation's name, or an existing encoder.

    Args:
        model: one of these.
        weights: weights file or folder of an initialisation.
        device: where to compute.
        batch_size: images per batch.
        download: download weights that are not on this machine.
        keep: see ``ModelEncoder``.
        precision: of its network: ``"fp32"`` by default, ``"bf16"``, ``"fp16"`` or ``"auto"``.
    """
    if isinstance(model, Encoder):
        return model
    options: dict[str, Any] = {"device": device, "batch_size": batch_size, "keep": keep}
    if not isinstance(model, str | Path):
        return ModelEncoder(model, {"model": None}, **options)
    from recollect.inference.models import open_model

    opened = open_model(str(model), weights=weights, download=download, device=device, precision=precision)
    if opened.remark is not None:
        warnings.warn(opened.remark, DataWarning, stacklevel=2)
    provenance = {"model": opened.provenance["model"], "weights": opened.provenance.get("weights")}
    if opened.embedder.precision != "fp32":
        provenance["precision"] = opened.embedder.precision
    return ModelEncoder(opened.embedder, provenance, opened=opened, **options)


def fingerprint(embedder: Embedder) -> str:
    """A SHA-256 over weights, preprocessing, and the parts of the model that have no weights."""
    from recollect.models.weights import weights_digest

    config, pixels = embedder.config, embedder.preprocessing
    facts = [
        weights_digest(embedder),
        [config.architecture, config.pooling, config.l2_before_head, *([config.stages] if config.stages else [])],
        [pixels.size, pixels.resize, pixels.interpolation, pixels.mean, pixels.std, pixels.max_side],
    ]
    facts += [] if embedder.precision == "fp32" else [embedder.precision]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def vector_length(whole: int, dim: int | None) -> int:
    """The length of vectors that keep the first ``dim`` of ``whole`` values; None for all of them.

    Raises:
        InputError: there are fewer.
    """
    if dim is not None and not 1 <= dim <= whole:
        raise InputError(f"dim is {dim}: the model's vectors have {whole} values; choose from 1 to {whole}.")
    return dim or whole


def shorten(rows: NDArray[np.float32], dim: int) -> NDArray[np.float32]:
    """The first ``dim`` values of each vector, normalized."""
    if dim == rows.shape[1]:
        return rows
    import torch

    from recollect.losses.matryoshka import unit_prefix

    return np.asarray(unit_prefix(torch.from_numpy(np.ascontiguousarray(rows)), dim).numpy())


def read_calibration(encoder: Encoder) -> dict[str, Any] | None:
    """The calibration kept with a model; None if there is none, or if it belongs to other weights."""
    path = Path(str(encoder.provenance.get("model"))) / CALIBRATION
    stored: dict[str, Any] = read_json(path) if path.is_file() else {}
    return stored if stored.get("fingerprint") == encoder.fingerprint else None


SECONDS = 10.0
"""To decode one image; 50 megapixels of a slow format take about 5."""
_PROCESSES = min(4, os.cpu_count() or 1)
_DECODED_BYTES = 2**30  # bytes of decoded images that wait for the model
_SIZES = struct.Struct("<QQ")


class Decoder:
    """Decodes uploads, a few at a time.

    Args:
        max_pixels: larger images are refused before they are decoded.
        at_least: as ``read_image`` takes it, so that an upload gives the vector of its file in the index.
    """

    def __init__(self, max_pixels: int, at_least: Callable[[], int | None] = lambda: None) -> None:
        self._max_pixels, self._at_least = max_pixels, at_least
        self._turns = asyncio.Semaphore(_PROCESSES)
        self._idle: SimpleQueue[Any] = SimpleQueue()  # processes
        self._decoded, self._budget = 0, threading.Condition()

    def start(self) -> None:
        """Start the processes."""
        for _ in range(_PROCESSES):
            self._idle.put(self._process())

    def stop(self) -> None:
        """End them."""
        while not self._idle.empty():
            with self._idle.get() as process:
                process.kill()

    @asynccontextmanager
    async def decoded(
        self, file: IO[bytes], present: Callable[[], Awaitable[None]]
    ) -> AsyncIterator[tuple[bytes, NDArray[np.uint8]]]:
        """The content of a file and its image as H × W × 3, which is in memory only inside the block.

        Args:
            file: an upload. present: raises an error if its client has left.

        Raises:
            ImageError: its message may be sent to the client.
        """
        async with self._turns:
            await present()
            content, pixels = await asyncio.to_thread(self._decode, file)
        try:
            yield content, pixels
        finally:
            self._reserve(-pixels.nbytes)

    def _decode(self, file: IO[bytes]) -> tuple[bytes, NDArray[np.uint8]]:
        content, process, size = file.read(), self._idle.get(), 0
        timer = threading.Timer(SECONDS, process.kill)
        timer.start()
        try:
            process.stdin.write(_SIZES.pack(len(content), self._at_least() or 0) + content)
            process.stdin.flush()
            height, width = _SIZES.unpack(process.stdout.read(_SIZES.size))
            timer.cancel()
            if not height:
                large = f"the image has more pixels than the limit of {self._max_pixels:,}. Shrink it."
                raise ImageError(large if width else "this is not a readable image.")
            self._reserve(size := 3 * height * width)
            pixels = np.empty((height, width, 3), np.uint8)
            if process.stdout.readinto(pixels.data.cast("B")) < size:
                raise OSError("the process has ended.")
            return content, pixels
        except (OSError, struct.error) as error:  # it was killed, or died of the image
            self._reserve(-size)
            with suppress(OSError), process:
                process.kill()
            process = self._process()
            raise ImageError("the image takes too long to decode, or is damaged.") from error
        finally:
            timer.cancel()
            self._idle.put(process)

    def _reserve(self, size: int) -> None:
        with self._budget:
            self._budget.wait_for(lambda: size < 0 or not self._decoded or self._decoded + size <= _DECODED_BYTES)
            self._decoded += size
            self._budget.notify_all()

    def _process(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", __name__, str(self._max_pixels)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # libraries print their remarks about damaged images there
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )


def main() -> None:
    """Decode images until the service ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C: the service answers the requests under way first
    set_max_pixels(int(sys.argv[1]))
    source, target = sys.stdin.buffer, sys.stdout.buffer
    while head := source.read(_SIZES.size):
        size, at_least = _SIZES.unpack(head)
        try:
            image = read_image(source.read(size), at_least=at_least or None)
            target.write(_SIZES.pack(image.height, image.width))
            target.write(image.tobytes())
        except ImageError as error:
            target.write(_SIZES.pack(0, error.kind == "too large"))
        target.flush()


if __name__ == "__main__":
    main()
