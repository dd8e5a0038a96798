"""Thumbnails of indexed images."""

from __future__ import annotations

import io
from collections import OrderedDict
from pathlib import Path
from threading import Lock

from PIL import Image

from recollect.common.errors import RecollectError
from recollect.common.images import read_image
from recollect.search.index import Index
from recollect.search.indexed_files import stamp_of

SIDE = 256
"""Longer side of a thumbnail in pixels."""
_KEPT = 2000  # thumbnails in memory: 20 MB


class Thumbnails:
    """Thumbnails of an index's items, made on request and cached by their digests."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self._made: OrderedDict[str, bytes] = OrderedDict()
        self._lock = Lock()

    def get(self, name: str) -> tuple[bytes, str] | None:
        """JPEG and digest of an item; None when there is no such item, or its image is missing or has changed."""
        item = self._index.get([name]).get(name)
        if item is None:
            return None
        with self._lock:
            if item.digest and item.digest in self._made:
                self._made.move_to_end(item.digest)
                return self._made[item.digest], item.digest
        try:
            picture: Path | bytes | None = Path(item.source) if item.source else self._index.store.picture(item.digest)
            # A file that replaced an indexed one must not be shown.
            if picture is None or (isinstance(picture, Path) and stamp_of(picture) != item.stamp):
                return None
            small = shrunk(read_image(picture))
        except (RecollectError, OSError):
            return None
        with self._lock:
            self._made[item.digest] = small
            while len(self._made) > _KEPT:
                self._made.popitem(last=False)
        return small, item.digest


def shrunk(image: Image.Image) -> bytes:
    """A thumbnail as JPEG."""
    small = image.copy()
    small.thumbnail((SIDE, SIDE), Image.Resampling.LANCZOS)
    buffer = io.BytesIO()
    small.save(buffer, "JPEG", quality=85)
    return buffer.getvalue()
