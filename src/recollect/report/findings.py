"""Possible problems in the data as a list: one entry per image, or per group of near-duplicates.

``find_all`` collects it from vectors (suspected labels, lonely images: ``neighbours.py``) and from pixels
(near-duplicates); ``data_checks.py`` shows it, and ``write_findings`` writes it as CSV.
"""

from __future__ import annotations

import codecs
import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from recollect.common.errors import InputError
from recollect.common.files import atomic_write
from recollect.data import ImageSet
from recollect.inference.content_keys import content_keys
from recollect.report.near_copies import group_copies
from recollect.report.neighbours import Labels, Lonely, Suspect, lonely_images, suspected_labels
from recollect.report.small_pictures import SmallPictures, read_small
from recollect.search.exact import Neighbours

MOST_READ = 20_000
"""Test images, and training images, that are compared by their pixels at most."""
_AT_ONCE = 512  # near-duplicates of one group that are compared with all of it at a time
COLUMNS = ("finding", "group", "part", "image", "class", "other_image", "other_class", "similarity", "what_to_do")


@dataclass(frozen=True)
class Duplicates:
    """A group of near-duplicates.

    Attributes:
        images: numbers of test images. training: numbers of training images.
        similarity: the lowest correlation among the pairs that connect the group.
        classes: names of all classes in it. kind: where it lies: ``"across the train/test border"``,
            ``"across classes"`` or ``"inside a class"``, the most serious that applies.
        partners: for each of ``images`` and then of ``training``, the position in both of the most similar one across that
            border, and their correlation.
    """

    images: list[int]
    training: list[int]
    similarity: float
    classes: list[str]
    kind: str
    partners: list[tuple[int, float]] = field(default_factory=list)


KINDS = ("across the train/test border", "across classes", "inside a class")


@dataclass(frozen=True)
class Findings:
    """All findings in a set, and how much of it was compared.

    Attributes:
        suspects, lonely, duplicates: see ``neighbours.py`` and ``Duplicates``; ``lonely`` is None if it cannot be judged.
        alone: the only image of its class.
        copies: test images whose bytes equal a training image. copied: of these, the training image, where it was found.
        compared: test images compared by pixels. compared_training: training images. training: how many there are.
        training_images: the training images compared, for their names.
        small: small copies of test images, for display. part: which images were looked at, if not test images.
    """

    suspects: list[Suspect]
    lonely: list[Lonely] | None
    alone: list[int]
    copies: list[int] = field(default_factory=list)
    duplicates: list[Duplicates] = field(default_factory=list)
    compared: int = 0
    compared_training: int = 0
    training: int = 0
    training_images: ImageSet | None = None
    small: SmallPictures | None = None
    copied: Mapping[int, int] = field(default_factory=dict)
    part: str = "test"

    def twins(self) -> dict[int, frozenset[int]]:
        """For every test image in a group of near-duplicates, the images of that group."""
        return {image: frozenset(group.images) for group in self.duplicates for image in group.images}


def find_all(
    vectors: NDArray[np.float32],
    labels: Labels,
    class_names: Sequence[str],
    found: Neighbours,
    images: ImageSet | None,
    training: ImageSet | None = None,
    *,
    trained_on: int | None = None,
    copies: Sequence[int] = (),
    most: int = MOST_READ,
    before: Neighbours | None = None,
) -> Findings:
    """Find all problems.

    Args:
        vectors, labels, class_names: of the test images, after training. found: their neighbours.
        images: to read their pixels; None leaves out near-duplicates.
        training: the run's training images, or a part of them; None if they are not available.
        trained_on: how many training images there are, if ``training`` is a part of them.
        copies: test images that are known to be training images.
        most: maximum number of test images to compare by pixels; if there are more, those with the most similar neighbour.
        before: neighbours in the pre-trained network, for lonely images: it knows many kinds of pictures, whereas vectors that
            were trained or whitened for one kind scatter too much for a foreign one to stand out.
    """
    suspects = suspected_labels(vectors, labels, found)
    lonely = lonely_images(*([found] if before is None else [found, before]))
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
        _copied(copies, images, training),
        "train" if images.split == "train" else "test",
    )


def _copied(copies: Sequence[int], images: ImageSet, training: ImageSet | None) -> dict[int, int]:
    """For test images that are copies of a training image, the number of that image."""
    if not len(copies) or training is None:
        return {}
    known = {key.tobytes(): place for place, key in reversed(list(enumerate(content_keys(training))))}
    keys = content_keys(images.subset(list(copies)))
    return {image: known[key.tobytes()] for image, key in zip(copies, keys, strict=True) if key.tobytes() in known}


def _duplicates(
    small: SmallPictures, names: NDArray[np.object_], border: SmallPictures | None, training: ImageSet | None
) -> list[Duplicates]:
    here = len(small.places)
    pictures = small if border is None else small.joined(border)
    if len(pictures.places) < 2:
        return []
    roots, lowest = group_copies(pictures)
    signatures = pictures.signatures()
    _, place, sizes = np.unique(roots, return_inverse=True, return_counts=True)
    order = np.argsort(place, kind="stable")
    groups = []
    for members in np.split(order, np.cumsum(sizes)[:-1]):
        inside = small.places[members[members < here]].tolist()
        if len(members) < 2 or not inside:  # copies among training images do not affect the test
            continue
        outside = [] if border is None else border.places[members[members >= here] - here].tolist()
        labels = [str(names[image]) for image in inside]
        if training is not None:
            labels += [training.class_names[int(training.labels[image])] for image in outside]
        classes = sorted(set(labels))
        kind = KINDS[0] if outside else KINDS[1] if len(classes) > 1 else KINDS[2]
        sides = {KINDS[0]: members >= here, KINDS[1]: np.array([classes.index(label) for label in labels])}
        partners = _partners(signatures[members], sides.get(kind, members))
        groups.append(Duplicates(inside, outside, float(lowest[members[0]]), classes, kind, partners))
    return sorted(groups, key=lambda g: (KINDS.index(g.kind), -len(g.classes), -g.similarity, g.images))


def _partners(rows: NDArray[np.float32], sides: NDArray[np.generic]) -> list[tuple[int, float]]:
    """For each row the most similar one of another side, and their correlation."""
    found: list[tuple[int, float]] = []
    for start in range(0, len(rows), _AT_ONCE):
        some = slice(start, start + _AT_ONCE)
        similar = np.where(sides[some, None] == sides[None, :], -np.inf, rows[some] @ rows.T)
        best = similar.argmax(axis=1)
        found += zip(best.tolist(), similar[np.arange(len(best)), best].tolist(), strict=True)
    return found


def write_findings(
    path: Path, findings: Findings, names: Sequence[str], labels: Labels, class_names: Sequence[str], *, overwrite: bool
) -> Path:
    """Write the list as CSV, one row per image and finding. A file that is not such a list is kept unless ``overwrite``.

    Spreadsheets treat a cell that starts with ``=``, ``+``, ``-`` or ``@`` as a formula; such names get an apostrophe. The file
    begins with a byte-order mark, without which Excel reads "é" as two characters.

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
        file.write(text.getvalue().encode("utf-8-sig", "backslashreplace"))
    return path


def check_list(path: Path, overwrite: bool) -> None:
    """Refuse to replace a file that is not a list of findings."""
    if overwrite or not path.exists():
        return
    if path.is_file():
        with path.open("rb") as file:
            if file.readline(500).removeprefix(codecs.BOM_UTF8).strip() == ",".join(COLUMNS).encode():
                return
    raise InputError(
        f"{path} exists and is not a list of findings: choose another name, or allow overwriting with --overwrite."
    )


def _rows(
    findings: Findings, names: Sequence[str], labels: Labels, class_names: Sequence[str]
) -> list[tuple[str, ...]]:
    def of(image: int) -> tuple[str, str]:
        return names[image], class_names[int(labels[image])]

    def trained(image: int) -> tuple[str, str]:
        training = findings.training_images
        return ("", "") if training is None else (training.names[image], training.class_names[training.labels[image]])

    rows: list[tuple[str, ...]] = []
    part = findings.part
    for suspect in findings.suspects:
        nearest = (names[suspect.nearest], class_names[suspect.suggested])
        todo = "check the label"
        rows.append(("suspected label", "", part, *of(suspect.image), *nearest, f"{suspect.similarity:.4f}", todo))
    for number, group in enumerate(findings.duplicates, 1):
        todo = {KINDS[0]: "keep it on one side only", KINDS[1]: "give all the same class, or remove one"}.get(
            group.kind, "keep one, or leave as it is"
        )
        members = [(part, *of(image)) for image in group.images]
        members += [("train", *trained(image)) for image in group.training]
        for member, (other, similarity) in zip(members, group.partners, strict=True):
            kind = f"near-duplicates {group.kind}"
            rows.append((kind, str(number), *member, *members[other][1:], f"{similarity:.4f}", todo))
    listed = {image for group in findings.duplicates if group.kind == KINDS[0] for image in group.images}
    for image in findings.copies:
        if image not in listed:
            source = trained(findings.copied[image]) if image in findings.copied else ("", "")
            todo = "keep it on one side only"
            rows.append(("copy of a training image", "", part, *of(image), *source, "1.0000", todo))
    for lonely in findings.lonely or []:
        todo = "check whether it belongs to the set"
        rows.append(("lonely", "", part, *of(lonely.image), *of(lonely.nearest), f"{lonely.similarity:.4f}", todo))
    for image in findings.alone:
        rows.append(("only image of its class", "", part, *of(image), "", "", "", "add images, or remove it"))
    return rows


def _harmless(cell: str) -> str:
    return f"'{cell}" if cell[:1] in ("=", "+", "-", "@", "\t", "\r", "\n") else cell
