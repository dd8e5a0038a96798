"""The policy for images that cannot be read, and the list of them; used in training, evaluation and search.

``"error"`` stops at the first. ``"skip"`` continues and keeps the list; the caller decides how to replace a bad image:
training batches use another image of the same class, evaluation leaves the image out, ``Embedder.embed`` returns a row of
NaN.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from recollect.common.errors import ConfigError, ImageError

ON_BAD_IMAGE = ("error", "skip")

OnBadImage = Literal["error", "skip"] | Callable[[int, ImageError], None]
"""The policy; a function is called with the image's number and the error instead of ``"skip"``."""

_SHOWN = 20


@dataclass(frozen=True)
class BadImage:
    """An image that could not be read. ``kind`` is the reason in one or two words, for counting."""

    index: int
    name: str
    reason: str
    kind: str = "broken"


class BadImages:
    """The images that could not be read so far. Safe to use from several threads.

    Args:
        policy: see ``OnBadImage``.
        name_of: the name of an image by its number; by default "image 7".

    Examples:
        >>> bad = BadImages("skip")
        >>> bad.add(7, ImageError("b.jpg: no such file.", "missing"))
        >>> 7 in bad, bad.counts()
        (True, {'missing': 1})
    """

    def __init__(self, policy: OnBadImage | str = "error", name_of: Callable[[int], str] | None = None) -> None:
        if not callable(policy) and policy not in ON_BAD_IMAGE:
            raise ConfigError(f"on_bad_image {policy!r} is unknown: choose one of {', '.join(ON_BAD_IMAGE)}.")
        self.policy = policy
        self._name_of = name_of or (lambda index: f"image {index}")
        self._found: dict[int, ImageError] = {}
        self._lock = threading.Lock()

    def add(self, index: int, error: ImageError) -> None:
        """Add image ``index``, once.

        Raises:
            ImageError: the policy is ``"error"``; the message says how to continue without the image.
        """
        if self.policy == "error":
            raise ImageError(
                f"{error} Repair or remove it, or skip such images with --skip-bad (in Python: skip_bad=True or "
                "on_bad_image='skip', whichever the function has).",
                error.kind,
            ) from error
        with self._lock:
            new = index not in self._found
            self._found.setdefault(index, error)
        if new and callable(self.policy):
            self.policy(index, error)

    def __contains__(self, index: int) -> bool:
        return index in self._found

    def __len__(self) -> int:
        return len(self._found)

    def listed(self) -> list[BadImage]:
        """All bad images, in the order of the images."""
        with self._lock:
            found = sorted(self._found.items())
        return [BadImage(index, self._name_of(index), str(error), error.kind) for index, error in found]

    def counts(self) -> dict[str, int]:
        """The number of bad images of each kind."""
        return dict(Counter(bad.kind for bad in self.listed()))

    def sentence(self, consequence: str) -> str:
        """A message that names up to 20 of them, e.g. with the consequence "their rows are NaN"."""
        lines = [bad.reason if bad.name in bad.reason else f"{bad.name}: {bad.reason}" for bad in self.listed()]
        shown = "\n  ".join(lines[:_SHOWN]) + ("\n  ..." if len(lines) > _SHOWN else "")
        count = f"{len(lines):,} images" if len(lines) != 1 else "1 image"
        return f"{count} could not be read; {consequence}:\n  {shown}"
