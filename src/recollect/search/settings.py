"""The state of an index: which generation answers, which is being built, and the model of each.

One JSON document of the store. Every store writes it atomically, so switching generations is atomic too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from recollect.search.store_protocol import Store, StoreError

DOCUMENT = "settings"
FORMAT = 2


@dataclass(frozen=True)
class Generation:
    """One generation of vectors.

    Attributes:
        number: in the store.
        model: the model of the vectors: ``model``, ``weights``, ``name``, ``fingerprint``, ``dim`` (of the model).
        dim: length of the stored vectors. half: whether they are stored in half precision.
        approximate: candidates and measured recall of approximate search; False for exact search; None if neither was
            asked for, which leaves it to the store.
        calibration: thresholds for *same* and *similar* (see ``thresholds``).
    """

    number: int
    model: dict[str, Any]
    dim: int
    half: bool = False
    approximate: dict[str, Any] | Literal[False] | None = None
    calibration: dict[str, Any] | None = None

    @property
    def fingerprint(self) -> str:
        """Of the model."""
        return str(self.model["fingerprint"])


@dataclass(frozen=True)
class Settings:
    """The document. ``current`` answers; ``building`` is being filled."""

    current: Generation
    building: Generation | None = None
    format: int = field(default=FORMAT)

    def with_current(self, **changes: Any) -> Settings:
        """A copy with changes to the current generation."""
        return replace(self, current=replace(self.current, **changes))


def read_settings(store: Store) -> Settings | None:
    """The settings of the index in ``store``; None if it has none yet.

    Raises:
        StoreError: they are not valid.
    """
    document = store.read_document(DOCUMENT)
    if document is None:
        return None
    if document.get("format") != FORMAT:
        raise StoreError(
            f"{store.address}: an index of format {document.get('format')}, and this version of recollect reads format "
            f"{FORMAT}: index the images again with  recollect index NEW_INDEX FOLDER --model RUN"
        )
    try:
        building = document.get("building")
        return Settings(_generation(document["current"]), None if building is None else _generation(building))
    except (KeyError, TypeError, ValueError) as error:
        raise StoreError(
            f"{store.address}: the settings of the index are not valid ({error}). Restore it from a copy."
        ) from error


def write_settings(store: Store, settings: Settings) -> None:
    """Replace the settings atomically."""
    store.write_document(DOCUMENT, asdict(settings))


def _generation(values: Mapping[str, Any]) -> Generation:
    found = Generation(**values)
    if not isinstance(found.number, int) or not isinstance(found.dim, int) or "fingerprint" not in found.model:
        raise ValueError(f"generation {found.number!r}")
    return found
