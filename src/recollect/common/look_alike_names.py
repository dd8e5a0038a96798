"""Classes whose names differ only in case, surrounding spaces or Unicode form: often one class, copied from two systems."""

from __future__ import annotations

import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping

from recollect.common.words import number_of, printable

_SHOWN = 3


def _composed(name: str) -> str:
    return unicodedata.normalize("NFC", name)


_WITHOUT: Mapping[str, Callable[[str], str]] = {
    "case": str.casefold,
    "surrounding spaces": str.strip,
    "Unicode form": _composed,
}


def look_alikes(names: Iterable[str]) -> str | None:
    """A remark that names such classes; None if there are none.

    Examples:
        >>> look_alikes(["Lime", "lime", "Kiwi"])
        "classes 'Lime' and 'lime' differ only in case: they are separate classes. Give them one name if they are the same."
    """
    alike: dict[str, list[str]] = defaultdict(list)
    for name in sorted(set(names)):
        alike[_composed(_composed(name).strip().casefold())].append(name)
    groups = [group for group in alike.values() if len(group) > 1]
    if not groups:
        return None
    shown = "; ".join(f"{_listed(group)} differ only in {_difference(group)}" for group in groups[:_SHOWN])
    more = f"; and {number_of(len(groups) - _SHOWN, 'other group')}" if len(groups) > _SHOWN else ""
    return f"classes {shown}{more}: they are separate classes. Give them one name if they are the same."


def _listed(names: list[str]) -> str:
    return " and ".join(repr(printable(name)) for name in names)


def _difference(names: list[str]) -> str:
    """What the names differ in: one thing if that is enough to tell them apart, otherwise all three."""
    return next(
        (word for word, without in _WITHOUT.items() if len(set(map(without, names))) == 1),
        "case, surrounding spaces or Unicode form",
    )
