"""Questions as people put them: files, folders of files, ids of the index. Behind ``recollect search``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from recollect.common.errors import InputError
from recollect.search.index import Index, Match
from recollect.search.indexed_files import list_images

_TOGETHER = 64
"""Query images embedded and searched at once."""


@dataclass(frozen=True)
class Answer:
    """A question with what was found. ``picture`` is the query's image: a file, bytes, or None if it is gone."""

    query: str
    picture: Path | bytes | None
    matches: list[Match]


def ask(
    index: Index,
    queries: Sequence[str],
    k: int = 10,
    where: Mapping[str, object] | None = None,
    *,
    exact: bool = False,
) -> list[Answer]:
    """Answers to files, folders and ids, in their order; an id's own item is left out of its answer.

    Raises:
        InputError: something that is neither a file, a folder nor an id.
    """
    answers: list[Answer | None] = []
    files: list[tuple[int, Path]] = []
    for query in queries:
        path = Path(query)
        if path.is_dir():
            for listed in list_images(path)[0]:
                files.append((len(answers), listed.path))
                answers.append(None)
        elif path.is_file():
            files.append((len(answers), path))
            answers.append(None)
        elif query in index.get([query]):
            answers.append(Answer(query, index.picture(query), index.search_id(query, k, where, exact=exact)))
        else:
            raise InputError(f"{query!r} is neither a file, a folder, nor an id of {index.address}.")
    for start in range(0, len(files), _TOGETHER):
        some = files[start : start + _TOGETHER]
        found = index.search_many([path for _, path in some], k, where, exact=exact)
        for (place, path), matches in zip(some, found, strict=True):
            answers[place] = Answer(str(path), path, matches)
    return [answer for answer in answers if answer is not None]


def parse_pairs(pairs: Sequence[str], option: str) -> dict[str, list[str]]:
    """``["label=shoe", "label=boot"]`` to ``{"label": ["shoe", "boot"]}``.

    Raises:
        InputError: one without an equals sign.
    """
    found: dict[str, list[str]] = {}
    for pair in pairs:
        name, sign, value = pair.partition("=")
        if not sign or not name.strip():
            raise InputError(f"{option} {pair!r}: write it as name=value, e.g. {option} label=shoe.")
        found.setdefault(name.strip(), []).append(value)
    return found
