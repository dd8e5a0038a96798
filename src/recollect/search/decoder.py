"""Uploads are decoded in processes of their own, which are killed when they take too long.

An image can be built to keep its decoder busy for a minute. A thread would hold Python's lock meanwhile, so that every
other client waits, and could not be stopped. Run as a program, this file is such a process: it reads images from its
standard input and writes their pixels to its standard output.
"""

from __future__ import annotations

import asyncio
import os
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from queue import SimpleQueue
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from recollect.common.errors import ImageError
from recollect.common.images import read_image, set_max_pixels

SECONDS = 10.0
"""To decode one image; 50 megapixels of a slow format take about 5."""
_PROCESSES = min(4, os.cpu_count() or 1)
_ROOM = 2**30  # bytes of decoded images that wait for the model
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
        self._idle: SimpleQueue[subprocess.Popen[bytes]] = SimpleQueue()
        self._used, self._room = 0, threading.Condition()

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
        content, process = file.read(), self._idle.get()
        try:
            return content, self._pixels(process, content)
        except (OSError, struct.error) as error:  # it was killed, or died of the image
            with suppress(OSError), process:
                process.kill()
            process = self._process()
            raise ImageError("the image takes too long to decode, or is damaged.") from error
        finally:
            self._idle.put(process)

    def _pixels(self, process: Any, content: bytes) -> NDArray[np.uint8]:
        timer = threading.Timer(SECONDS, process.kill)
        timer.start()
        try:
            process.stdin.write(_SIZES.pack(len(content), self._at_least() or 0) + content)
            process.stdin.flush()
            height, width = _SIZES.unpack(process.stdout.read(_SIZES.size))
        finally:
            timer.cancel()
        if not height:
            large = f"the image has more pixels than the limit of {self._max_pixels:,}. Shrink it."
            raise ImageError(large if width else "this is not a readable image.")
        self._reserve(3 * height * width)
        pixels = np.empty((height, width, 3), np.uint8)
        if process.stdout.readinto(pixels.data.cast("B")) < pixels.nbytes:
            self._reserve(-pixels.nbytes)
            raise OSError("the process has ended.")
        return pixels

    def _reserve(self, size: int) -> None:
        with self._room:
            self._room.wait_for(lambda: size < 0 or not self._used or self._used + size <= _ROOM)
            self._used += size
            self._room.notify_all()

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
