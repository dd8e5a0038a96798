"""Possible problems in the data as a list: one entry per image, or per group of near-duplicates.

``find_all`` collects it from vectors (suspected labels, lonely images: ``neighbours.py``) and from pixels
(near-duplicates); ``data_checks.py`` shows it, and ``write_findings`` writes it as CSV.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from recollect.common.errors import InputError
from recollect.common.files import atomic_write
from recollect.data import ImageSet
from recollect.report.near_copies import group_copies
from recollect.report.neighbours import Labels, Lonely, Suspect, lonely_images, suspected_labels
from recollect.report.small_pictures import SmallPictures, read_small
from recollect.search.exact_search import Found

MOST_READ = 20_000
"""Test images, and training images, that are compared by their pixels at most."""
COLUMNS = ("finding", "group", "part", "image", "class", "other_image", "other_class", "similarity", "what_to_do")


@dataclass(frozen=True)
class Duplicates:
    """A group of near-duplicates.

    Attributes:
        images: numbers of test images. training: numbers of training images.
        similarity: the lowest correlation among the pairs that connect the group.
        classes: names of all classes in it. kind: where it lies: ``"across the train/test border"``,
            ``"across classes"`` or ``"inside a class"``, the most serious that applies.
    """

    images: list[int]
    training: list[int]
    similarity: float
    classes: list[str]
    kind: str


KINDS = ("across the train/test border", "across classes", "inside a class")


@dataclass(frozen=True)
class Findings:
    """All findings in a set, and how much of it was compared.

    Attributes:
        suspects, lonely, duplicates: see ``neighbours.py`` and ``Duplicates``. alone: the only image of its class.
        copies: test images whose bytes equal a training image.
        compared: test images compared by pixels. compared_training: training images. training: how many there are.
        training_images: the training images compared, for their names.
        small: small copies of test images, for display.
    """

    suspects: list[Suspect]
    lonely: list[Lonely]
    alone: list[int]
    copies: list[int] = field(default_factory=list)
    duplicates: list[Duplicates] = field(default_factory=list)
    compared: int = 0
    compared_training: int = 0
    training: int = 0
    training_images: ImageSet | None = None
    small: SmallPictures | None = None

    def twins(self) -> dict[int, frozenset[int]]:
        """For every test image in a group of near-duplicates, the images of that group."""
        return {image: frozenset(group.images) for group in self.duplicates for image in group.images}


def find_all(
    vectors: NDArray[np.float32],
    labels: Labels,
    class_names: Sequence[str],
    found: Found,
    images: ImageSet | None,
    training: ImageSet | None = None,
    *,
    trained_on: int | None = None,
    copies: Sequence[int] = (),
    most: int = MOST_READ,
) -> Findings:
    """Find all problems.

    Args:
        vectors, labels, class_names: of the test images, after training. found: their neighbours.
        images: to read their pixels; None leaves out near-duplicates.
        training: the run's training images, or a part of them; None if they are not available.
        trained_on: how many training images there are, if ``training`` is a part of them.
        copies: test images that are known to be training images.
        most: maximum number of test images to compare by pixels; if there are more, those with the most similar neighbour.
    """
    suspects, lonely = suspected_labels(vectors, labels, found), lonely_images(found)
    alone = np.flatnonzero(np.bincount(labels)[labels] == 1).tolist()
    if images is None:
        return Findings(suspects, lonely, alone, list(copies))
    places = np.arange(len(labels))
    if len(labels) > most:  # copies are among the nearest of each other in every embedding
        places = np.sort(np.argsort(-found.similarities[:, 0], kind="stable")[:most])
    small = read_small(images, places)
    border = None if training is None or not len(training) else read_small(training, np.arange(len(training)))
    names = np.array([class_names[label] for label in labels.tolist()], object)
    groups = _duplicates(small, names, border, training)
    return Findings(
        suspects,
        lonely,
        alone,
        list(copies),
        groups,
        len(small.places),
        0 if border is None else len(border.places),
        0 if training is None else trained_on or len(training),
        training,
        small,
    )


def _duplicates(
    small: SmallPictures, names: NDArray[np.object_], border: SmallPictures | None, training: ImageSet | None
) -> list[Duplicates]:
    here = len(small.places)
    pictures = small if border is None else small.joined(border)
    if len(pictures.places) < 2:
        return []
    roots, lowest = group_copies(pictures)
    _, place, sizes = np.unique(roots, return_inverse=True, return_counts=True)
    order = np.argsort(place, kind="stable")
    groups = []
    for members in np.split(order, np.cumsum(sizes)[:-1]):
        inside = small.places[members[members < here]].tolist()
        if len(members) < 2 or not inside:  # copies among training images do not affect the test
            continue
        outside = [] if border is None else border.places[members[members >= here] - here].tolist()
        classes = {str(names[image]) for image in inside}
        if training is not None:
            classes |= {training.class_names[int(training.labels[image])] for image in outside}
        kind = KINDS[0] if outside else KINDS[1] if len(classes) > 1 else KINDS[2]
        groups.append(Duplicates(inside, outside, float(lowest[members[0]]), sorted(classes), kind))
    return sorted(groups, key=lambda g: (KINDS.index(g.kind), -len(g.classes), -g.similarity, g.images))


def write_findings(
    path: Path, findings: Findings, names: Sequence[str], labels: Labels, class_names: Sequence[str], *, overwrite: bool
) -> Path:
    """Write the list as CSV, one row per image and finding. A file that is not such a list is kept unless ``overwrite``.

    Spreadsheets treat a cell that starts with ``=``, ``+``, ``-`` or ``@`` as a formula; such names get an apostrophe.

    Raises:
        InputError: another file exists.
    """
    check_list(path, overwrite)
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(COLUMNS)
    for row in _rows(findings, names, labels, class_names):
        writer.writerow([_harmless(cell) for cell in row])
    with atomic_write(path) as file:
        file.write(text.getvalue().encode("utf-8", "backslashreplace"))
    return path


def check_list(path: Path, overwrite: bool) -> None:
    """Refuse to replace a file that is not a list of findings."""
    if overwrite or not path.exists():
        return
    if path.is_file():
        with path.open("rb") as file:
            if file.readline(500).strip() == ",".join(COLUMNS).encode():
                return
    raise InputError(
        f"{path} exists and is not a list of findings: choose another name, or allow overwriting with --overwrite."
    )


def _rows(
    findings: Findings, names: Sequence[str], labels: Labels, class_names: Sequence[str]
) -> list[tuple[str, ...]]:
    def of(image: int) -> tuple[str, str]:
        return names[image], class_names[int(labels[image])]

    rows: list[tuple[str, ...]] = []
    for suspect in findings.suspects:
        other = (names[suspect.nearest], class_names[suspect.suggested])
        todo = "check the label"
        rows.append(("suspected label", "", "test", *of(suspect.image), *other, f"{suspect.similarity:.4f}", todo))
    training = findings.training_images
    for number, group in enumerate(findings.duplicates, 1):
        todo = {KINDS[0]: "keep it on one side only", KINDS[1]: "give all the same class, or remove one"}.get(
            group.kind, "keep one, or leave as it is"
        )
        first = of(group.images[0])
        members = [("test", *of(image)) for image in group.images]
        if training is not None:
            members += [
                ("train", training.names[image], training.class_names[int(training.labels[image])])
                for image in group.training
            ]
        for member in members:
            others = ("", "") if member[1:] == first else first
            kind = f"near-duplicates {group.kind}"
            rows.append((kind, str(number), *member, *others, f"{group.similarity:.4f}", todo))
    for image in findings.copies:
        rows.append(("copy of a training image", "", "test", *of(image), "", "", "1.0000", "keep it on one side only"))
    for lonely in findings.lonely:
        todo = "check whether it belongs to the set"
        rows.append(("lonely", "", "test", *of(lonely.image), *of(lonely.nearest), f"{lonely.similarity:.4f}", todo))
    for image in findings.alone:
        rows.append(("only image of its class", "", "test", *of(image), "", "", "", "add images, or remove it"))
    return rows


def _harmless(cell: str) -> str:
    return f"'{cell}" if cell[:1] in ("=", "+", "-", "@", "\t", "\r", "\n") else cell
