"""Data to check: suspected labels, near-duplicates and lonely images, as a list, on the page and as CSV.

``find_all`` collects the list from vectors (suspected labels, lonely images: one exact search over all pairs) and from pixels
(near-duplicates, ``group_copies``); ``data_section`` shows it, and ``write_findings`` writes it as CSV.

Near-duplicates are recompressed, resized, brighter, darker or slightly cropped. Pairs that correlate at 16 × 16 pixels are
candidates. Different objects on a plain background correlate at that size too, so a candidate is compared again at 64 × 64
grey pixels: the second picture is aligned with the first, both are cut into blocks, and even the half of the blocks that
agrees least has to correlate. Characters that differ in an accent pass that too, so no part may be much brighter or darker
in one picture than in the other. Figures are in docs/report.md.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from recollect.common.console import ProgressLine
from recollect.common.files import atomic_write
from recollect.data import ImageSet
from recollect.inference.store import content_keys
from recollect.report.map import FINE, Atlas, SmallPictures, read_small
from recollect.report.markup import Markup, render
from recollect.report.results import Labels, ReportImages
from recollect.search.duplicates import close_pairs, groups_of, join_pairs
from recollect.search.exact import Neighbours, nearest_unchecked

NEAREST = 10
"""Neighbours of each image."""
AMONG, AGREEING = 5, 3
"""A label is suspected if 3 of the 5 nearest images belong to one other class …"""
CLEAR = NEAREST
"""… and none of the nearest 10 to its own. Measured by ``benchmarks/wrong_labels.py``; the table is in docs/report.md."""
FEW = 5
"""In classes of at most this many images all ``AMONG`` must agree: an image seldom has its few classmates among them."""
MOST_READ = 20_000
"""Maximum number of test images, and of training images, whose pixels are compared."""
CANDIDATES = 0.9
"""Minimum correlation at 16 × 16 pixels for two pictures to be compared more closely."""
AGREE = 0.6
"""Minimum agreement of two aligned pictures to be copies."""
DIFFER = 0.4
"""Largest difference of a part's mean brightness between copies, in standard deviations of the picture."""
MOST_CHECKED = 5000
"""Maximum number of pairs that are compared closely, the most similar first: about 3 seconds."""
_IMAGES_AT_ONCE = 4096  # images between two steps of the progress line
_PAIRS_AT_ONCE = 500
_PARTNERS_AT_ONCE = 512  # near-duplicates of one group that are compared with all of it at a time
_MOST_CANDIDATES = 200_000  # held in memory
_BLOCK, _EDGE = 8, 4  # pixels of a block's side; pixels along the edge that a crop may have cut off
_BLACK, _WHITE = 5, 250  # grey levels beyond which a pixel may have been clipped
_ENOUGH = 0.1  # share of pixels not clipped in one picture alone, by which brightness and contrast are measured
_TEXTURE = 4.0  # standard deviation from which a block shows something, in grey levels
_CROPS = (-0.05, -0.033, -0.017, 0.0, 0.017, 0.033, 0.05)  # cut from each side of the first (below 0) or of the second
_SHIFTS = tuple(product((-1, 0, 1), repeat=2))  # pixels
_SHOWN, _MORE = 8, 24
_NEIGHBOURS = 8  # pictures beside a suspected label
_GROUPS, _LONELY = 6, 10  # shown at once: full rows of two or three groups, of ten pictures
_MEMBERS = 6  # pictures of one group

COLUMNS = ("finding", "group", "part", "image", "class", "other_image", "other_class", "similarity", "what_to_do")
KINDS = ("across the train/test border", "across classes", "inside a class")
_WORDS = {  # why it matters, what to do about it, and the same in the list
    KINDS[0]: (
        "A test image and a training image look alike. If they are copies, the test is too easy.",
        "keep them only in train or only in test: otherwise the test is too easy",
        "keep it on one side only",
    ),
    KINDS[1]: (
        "Images with different labels look alike. If they are copies, one of them counts as wrong whatever the model answers.",
        "give them the same class, or remove all but one",
        "give all the same class, or remove one",
    ),
    KINDS[2]: (
        "Images of one class look alike. If they are copies, each finds the other, which makes r@1 too good.",
        "keep one each if they are copies rather than a series",
        "keep one, or leave as it is",
    ),
}

Floats = NDArray[np.float32]
Places = NDArray[np.int64]


@dataclass(frozen=True)
class Suspect:
    """An image most of whose nearest images belong to one other class, and none to its own.

    Attributes:
        image: its number. suggested: the other class.
        agreeing: how many of the nearest belong to that class. neighbours: of how many. nearest: the first of them.
        similarity: their mean similarity. own: similarity to the nearest image of its own class; NaN if it has none.
    """

    image: int
    suggested: int
    agreeing: int
    neighbours: int
    nearest: int
    similarity: float
    own: float

    @property
    def margin(self) -> float:
        """How much more similar the other class is; an image with no other of its class counts as similarity 0."""
        return self.similarity - (0.0 if np.isnan(self.own) else self.own)


@dataclass(frozen=True)
class Lonely:
    """An image far from all others: its number, the nearest image and the similarity to it.

    ``depth``: how far that is below what is usual, in interquartile ranges.
    """

    image: int
    nearest: int
    similarity: float
    depth: float = 0.0


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


@dataclass(frozen=True)
class Findings:
    """All findings in a set, and how much of it was compared.

    Attributes:
        suspects, lonely, duplicates: see their classes; ``lonely`` is None if it cannot be judged.
        singletons: the only images of their classes.
        copies: test images whose bytes equal a training image. sources: of these, the training image, where it was found.
        compared: test images compared by pixels. compared_training: training images. training: how many there are.
        training_images: the training images compared, for their names.
        small: small copies of test images, for display.
    """

    suspects: list[Suspect]
    lonely: list[Lonely] | None
    singletons: list[int]
    copies: list[int] = field(default_factory=list)
    duplicates: list[Duplicates] = field(default_factory=list)
    compared: int = 0
    compared_training: int = 0
    training: int = 0
    training_images: ImageSet | None = None
    small: SmallPictures | None = None
    sources: Mapping[int, int] = field(default_factory=dict)

    def twins(self) -> dict[int, frozenset[int]]:
        """For every test image in a group of near-duplicates, the images of that group."""
        return {image: frozenset(group.images) for group in self.duplicates for image in group.images}


def find_all(
    vectors: NDArray[np.float32],
    images: ReportImages,
    neighbours: Neighbours,
    training: ImageSet | None = None,
    *,
    trained_on: int | None = None,
    copies: Sequence[int] = (),
    most: int = MOST_READ,
    before: Neighbours | None = None,
) -> Findings:
    """Find all problems.

    Args:
        vectors: of the test images, after training. neighbours: of each.
        images: the test images; near-duplicates are left out if their pixels are not available.
        training: the run's training images, or a part of them; None if they are not available.
        trained_on: how many training images there are, if ``training`` is a part of them.
        copies: test images that are known to be training images.
        most: maximum number of test images to compare by pixels; if there are more, those with the most similar neighbour.
        before: neighbours in the pre-trained network, for lonely images: it knows many kinds of pictures, whereas vectors that
            were trained or whitened for one kind scatter too much for a foreign one to stand out.
    """
    labels = images.labels
    suspects = suspected_labels(vectors, labels, neighbours)
    lonely = lonely_images(*([neighbours] if before is None else [neighbours, before]))
    singletons = np.flatnonzero(np.bincount(labels)[labels] == 1).tolist()
    findings = Findings(suspects, lonely, singletons, list(copies))
    if images.images is None:
        return findings
    places = np.arange(len(labels))
    if len(labels) > most:  # copies are among the nearest of each other in every embedding
        places = np.sort(np.argsort(-neighbours.similarities[:, 0], kind="stable")[:most])
    small = read_small(images.images, places)
    border = None if training is None or not len(training) else read_small(training, np.arange(len(training)))
    sources: dict[int, int] = {}
    if copies and training is not None:
        by_content = {key.tobytes(): place for place, key in reversed(list(enumerate(content_keys(training))))}
        keys = [key.tobytes() for key in content_keys(images.images.subset(list(copies)))]
        sources = {image: by_content[key] for image, key in zip(copies, keys, strict=True) if key in by_content}
    return replace(
        findings,
        duplicates=_duplicates(small, images, border, training),
        compared=len(small.places),
        compared_training=0 if border is None else len(border.places),
        training=0 if training is None else trained_on or len(training),
        training_images=training,
        small=small,
        sources=sources,
    )


def _duplicates(
    small: SmallPictures, images: ReportImages, border: SmallPictures | None, training: ImageSet | None
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
        names = [images.class_of(image) for image in inside]
        if training is not None:
            names += [training.class_names[int(training.labels[image])] for image in outside]
        classes = sorted(set(names))
        kind = KINDS[0] if outside else KINDS[1] if len(classes) > 1 else KINDS[2]
        sides = {KINDS[0]: members >= here, KINDS[1]: np.array([classes.index(name) for name in names])}
        partners = _partners(signatures[members], sides.get(kind, members))
        groups.append(Duplicates(inside, outside, float(lowest[members[0]]), classes, kind, partners))
    return sorted(groups, key=lambda g: (KINDS.index(g.kind), -len(g.classes), -g.similarity, g.images))


def _partners(rows: NDArray[np.float32], sides: NDArray[np.generic]) -> list[tuple[int, float]]:
    """For each row the most similar one of another side, and their correlation."""
    partners: list[tuple[int, float]] = []
    for start in range(0, len(rows), _PARTNERS_AT_ONCE):
        some = slice(start, start + _PARTNERS_AT_ONCE)
        similar = np.where(sides[some, None] == sides[None, :], -np.inf, rows[some] @ rows.T)
        best = similar.argmax(axis=1)
        partners += zip(best.tolist(), similar[np.arange(len(best)), best].tolist(), strict=True)
    return partners


def neighbours_of_all(vectors: NDArray[np.float32], count: int = NEAREST) -> Neighbours:
    """The nearest other images of every image: N × count, fewer columns if there are fewer images."""
    total = len(vectors)
    count = min(count, total - 1)
    if count < 1:
        return Neighbours(np.empty((total, 0), np.int64), np.empty((total, 0), np.float32))
    gallery = np.ascontiguousarray(vectors, np.float32)
    parts = []
    with ProgressLine("comparing", total) as line:
        for start in range(0, total, _IMAGES_AT_ONCE):
            own = np.arange(start, min(start + _IMAGES_AT_ONCE, total))
            parts.append(nearest_unchecked(gallery[own], gallery, count, own=own))
            line.advance(len(own))
    return Neighbours(np.concatenate([p.indices for p in parts]), np.concatenate([p.similarities for p in parts]))


def suspected_labels(vectors: NDArray[np.float32], labels: Labels, neighbours: Neighbours) -> list[Suspect]:
    """Images whose nearest belong to one other class, by the margin between its similarity and that of their own class.

    ``AGREEING`` of the nearest ``AMONG`` must be of one other class, and none of the nearest ``CLEAR`` of the image's own,
    or of as many as the other class has: with few images, those that follow say nothing. In a class of ``FEW`` images or
    fewer, all ``AMONG`` must agree, or the whole other class if it is smaller.
    """
    first = labels[neighbours.indices[:, :AMONG]]
    width = first.shape[1]
    if not width:
        return []
    sizes = np.bincount(labels)
    alike = (first[:, :, None] == first[:, None, :]).sum(axis=2)  # how many of the nearest share the class of each
    place = alike.argmax(axis=1)[:, None]
    suggested = np.take_along_axis(first, place, axis=1)[:, 0]
    agreeing = alike.max(axis=1)
    required = np.where(sizes[labels] > FEW, AGREEING, np.maximum(AGREEING, np.minimum(width, sizes[suggested])))
    clear = np.minimum(CLEAR, sizes[suggested])[:, None]
    own = (labels[neighbours.indices] == labels[:, None]) & (np.arange(neighbours.indices.shape[1]) < clear)
    suspects = np.flatnonzero((suggested != labels) & (agreeing >= required) & ~own.any(axis=1)).tolist()
    listed = []
    for image in suspects:
        others = np.flatnonzero((labels == labels[image]) & (np.arange(len(labels)) != image))
        best = float((vectors[others] @ vectors[image]).max()) if len(others) else float("nan")
        those = np.flatnonzero(first[image] == suggested[image])
        mean = float(neighbours.similarities[image, those].mean())
        nearest = int(neighbours.indices[image, those[0]])
        listed.append(Suspect(image, int(suggested[image]), len(those), width, nearest, mean, best))
    return sorted(listed, key=lambda s: (-s.margin, s.image))


def lonely_images(*embeddings: Neighbours) -> list[Lonely] | None:
    """Images far from all others, the loneliest first.

    Their similarity to the nearest image is below the lower quartile by more than 3 times the interquartile range:
    Tukey's rule for far outliers.

    Args:
        embeddings: neighbours of the images in one embedding or several; an image is listed if it is lonely in any of them.

    Returns:
        None if similarities vary so much that no image could be lonely: below the limit there are only negative ones.
    """
    lonely: dict[int, Lonely] = {}
    with_others = [each for each in embeddings if each.indices.shape[1]]
    judged = not with_others
    for each in with_others:
        highest = each.similarities[:, 0]
        low, high = np.quantile(highest, [0.25, 0.75])
        limit, span = low - 3 * (high - low), max(float(high - low), 1e-6)
        judged = judged or limit > 0
        for image in np.flatnonzero(highest < limit).tolist():
            depth = float(low - highest[image]) / span
            if image not in lonely or lonely[image].depth < depth:
                lonely[image] = Lonely(image, int(each.indices[image, 0]), float(highest[image]), depth)
    if not lonely and not judged:
        return None
    return sorted(lonely.values(), key=lambda one: (-one.depth, one.image))


def group_copies(pictures: SmallPictures) -> tuple[Places, Floats]:
    """For every picture the number of its group, and the lowest correlation at 16 × 16 pixels among the group's pairs.

    Pairs that are in one group already are not compared, so that many copies of one picture cost little.
    """
    left, right, values = _candidates(pictures.signatures())
    roots = np.arange(len(pictures.places))
    lowest = np.full(len(roots), np.inf, np.float32)
    checked = 0
    while len(left) and checked < MOST_CHECKED:
        apart = groups_of(roots, lowest)[0]
        open_pairs = np.flatnonzero(apart[left] != apart[right])
        some, rest = open_pairs[:_PAIRS_AT_ONCE], open_pairs[_PAIRS_AT_ONCE:]
        good = some[agreement(pictures.fine[left[some]], pictures.fine[right[some]]) >= AGREE]
        join_pairs(roots, lowest, left[good], right[good], values[good])
        checked += len(some)
        left, right, values = left[rest], right[rest], values[rest]
    return groups_of(roots, lowest)


def _candidates(rows: Floats) -> tuple[Places, Places, Floats]:
    """Pairs that correlate, the most similar first."""
    left, right, values = np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.float32)
    for more_left, more_right, more_values in close_pairs(rows, CANDIDATES):
        values = np.concatenate([values, more_values])
        order = np.argsort(-values, kind="stable")[:_MOST_CANDIDATES]
        left, right = np.concatenate([left, more_left])[order], np.concatenate([right, more_right])[order]
        values = values[order]
    return left, right, values


def agreement(left: NDArray[np.uint8], right: NDArray[np.uint8]) -> Floats:
    """How well pairs of pictures agree after alignment, from −1 to 1: mean correlation of the blocks that agree least.

    Half of the blocks count, and of those only the ones in which either picture shows something. Two pictures without any
    such block agree by 0, and so do two that differ in some part, see ``DIFFER``.

    Args:
        left, right: P × FINE × FINE.
    """
    one = left.astype(np.float32)
    other = _aligned(one, right.astype(np.float32))
    first, second = _blocks(one), _blocks(other)
    size = np.sqrt((first**2).mean(axis=2)), np.sqrt((second**2).mean(axis=2))
    correlation = (first * second).mean(axis=2) / np.maximum(size[0] * size[1], _TEXTURE)
    shows = np.maximum(*size) >= _TEXTURE
    ordered = np.sort(np.where(shows, correlation, np.inf), axis=1)
    counted = np.arange(ordered.shape[1]) < (shows.sum(axis=1, keepdims=True) + 1) // 2
    total = np.where(counted, ordered, 0).sum(axis=1)
    mean = total / np.maximum(counted.sum(axis=1), 1)
    # One picture is brightened and clipped to resemble the other, and the other way round: what was clipped to white or
    # black can only be predicted, not restored, so the better of the two counts.
    inner = slice(_EDGE, FINE - _EDGE)
    one, other = one[:, inner, inner], other[:, inner, inner]
    difference = np.minimum(_unexplained(one, other), _unexplained(other, one))
    agreement: Floats = np.where(difference <= DIFFER, mean, np.minimum(mean, 0)).astype(np.float32)
    return agreement


def _unexplained(pictures: Floats, others: Floats) -> Floats:
    """The largest mean of a block that is left when ``others``, brightened and clipped, are subtracted from ``pictures``.

    In standard deviations of the picture; overall brightness and contrast aside.
    """
    unclipped = ((pictures > _BLACK) == (others > _BLACK)) & ((pictures < _WHITE) == (others < _WHITE))
    unclipped |= unclipped.mean(axis=(1, 2), keepdims=True) < _ENOUGH
    weight = unclipped / unclipped.sum(axis=(1, 2), keepdims=True)
    here, there = ((weight * part).sum(axis=(1, 2), keepdims=True) for part in (pictures, others))
    spread = np.maximum((weight * (others - there) ** 2).sum(axis=(1, 2), keepdims=True), 1e-6)
    slope = (weight * (pictures - here) * (others - there)).sum(axis=(1, 2), keepdims=True) / spread
    rest = pictures - np.clip(here + slope * (others - there), 0, 255)
    # Blocks overlap, so that one of them covers any detail.
    means = torch.nn.functional.avg_pool2d(torch.from_numpy(rest), _BLOCK, stride=2).abs().amax(dim=(1, 2))
    largest: Floats = means.numpy() / np.maximum(pictures.std(axis=(1, 2)), 1)
    return largest


def _blocks(pictures: Floats) -> Floats:
    """P × blocks × pixels, each block with mean 0."""
    count = (FINE - 2 * _EDGE) // _BLOCK
    inner = pictures[:, _EDGE:-_EDGE, _EDGE:-_EDGE].reshape(-1, count, _BLOCK, count, _BLOCK)
    cut = inner.transpose(0, 1, 3, 2, 4).reshape(len(pictures), count**2, _BLOCK**2)
    centred: Floats = cut - cut.mean(axis=2, keepdims=True)
    return centred


def _aligned(left: Floats, right: Floats) -> Floats:
    """``right``, cropped and then shifted so that it correlates most with ``left``."""
    crops, result = _best(left, right, [(crop, 0, 0) for crop in _CROPS])
    for number, crop in enumerate(_CROPS):
        some = np.flatnonzero(crops == number)
        result[some] = _best(left[some], right[some], [(crop, down, across) for down, across in _SHIFTS])[1]
    return result


def _best(left: Floats, right: Floats, ways: Sequence[tuple[float, int, int]]) -> tuple[Places, Floats]:
    """For each pair, the number of the way to crop and shift ``right`` that correlates most with ``left``, and the result."""
    one, versions, correlations = _centred(left), [_resampled(right, *way) for way in ways], []
    for other in map(_centred, versions):
        correlations.append((one * other).sum(axis=1) / np.maximum(np.linalg.norm(other, axis=1), 1e-6))
    best: Places = np.stack(correlations).argmax(axis=0)
    return best, np.stack(versions)[best, np.arange(len(best))]


def _resampled(pictures: Floats, crop: float, down: int, across: int) -> Floats:
    """Pictures without ``crop`` of each side, shifted, at their old size; a negative crop leaves a margin."""
    side = pictures.shape[1]
    centre = (side - 1) / 2
    place = centre + (np.arange(side) - centre) * (1 - 2 * crop)
    rows, columns = (np.clip(np.rint(place + shift), 0, side - 1).astype(np.intp) for shift in (down, across))
    taken: Floats = pictures[:, rows][:, :, columns]
    return taken


def _centred(pictures: Floats) -> Floats:
    """P × pixels with mean 0."""
    rows = pictures.reshape(len(pictures), FINE**2)
    centred: Floats = rows - rows.mean(axis=1, keepdims=True)
    return centred


def data_section(
    findings: Findings,
    neighbours: Neighbours,
    images: ReportImages,
    atlas: Atlas,
    training: Atlas,
    of: str | None = None,
) -> Markup:
    """All findings, the most serious first, with what to do about them.

    ``of``: the run whose vectors were checked, if there are several.
    """
    groups = {kind: [group for group in findings.duplicates if group.kind == kind] for kind in KINDS}
    why = "Far from every other image: damaged, of another kind, or of a class that needs more images."
    sections: list[tuple[str, str, str | None, Sequence[object], int]] = [
        ("suspects", "Suspected wrong labels", None, findings.suspects, _SHOWN),
        *(("groups", f"Near-duplicates {kind}", _WORDS[kind][0], groups[kind], _GROUPS) for kind in KINDS),
        ("lonely", "Lonely images", why, findings.lonely or [], _LONELY),
    ]
    return render(
        "checks.html",
        duplicates=groups,
        advice=_WORDS,
        of=of,
        images=images,
        findings=findings,
        neighbours=neighbours,
        atlas=atlas,
        training=training,
        sections=[section for section in sections if section[3]] if atlas.at_hand else [],
        most=_MORE,
        beside=_NEIGHBOURS,
        members=_MEMBERS,
        agreeing=AGREEING,
        among=AMONG,
        few=FEW,
        clear=CLEAR,
    )


def write_findings(path: Path, findings: Findings, images: ReportImages) -> None:
    """Write the list as CSV, one row per image and finding.

    Spreadsheets treat a cell that starts with ``=``, ``+``, ``-`` or ``@`` as a formula; such names get an apostrophe. The file
    begins with a byte-order mark, without which Excel reads "é" as two characters.
    """
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(COLUMNS)
    for row in _rows(findings, images):
        writer.writerow([f"'{cell}" if cell[:1] in ("=", "+", "-", "@", "\t", "\r", "\n") else cell for cell in row])
    with atomic_write(path) as file:
        file.write(text.getvalue().encode("utf-8-sig", "backslashreplace"))


def _rows(findings: Findings, images: ReportImages) -> Iterator[tuple[str, ...]]:
    part = "train" if images.split == "train" else "test"

    def tested(image: int) -> tuple[str, ...]:
        return part, images.names[image], images.class_of(image)

    def trained(image: int | None) -> tuple[str, ...]:
        training = findings.training_images
        if training is None or image is None:
            return "train", "", ""
        return "train", training.names[image], training.class_names[int(training.labels[image])]

    for one in findings.suspects:
        nearest = (images.names[one.nearest], images.class_names[one.suggested])
        yield "suspected label", "", *tested(one.image), *nearest, f"{one.similarity:.4f}", "check the label"
    for number, group in enumerate(findings.duplicates, 1):
        members = [*map(tested, group.images), *map(trained, group.training)]
        kind, todo = f"near-duplicates {group.kind}", _WORDS[group.kind][2]
        for member, (other, value) in zip(members, group.partners, strict=True):
            yield kind, str(number), *member, *members[other][1:], f"{value:.4f}", todo
    listed = {image for group in findings.duplicates if group.kind == KINDS[0] for image in group.images}
    for image in sorted({*findings.copies} - listed):
        source = trained(findings.sources.get(image))[1:]
        yield "copy of a training image", "", *tested(image), *source, "1.0000", _WORDS[KINDS[0]][2]
    for far in findings.lonely or []:
        todo = "check whether it belongs to the set"
        yield "lonely", "", *tested(far.image), *tested(far.nearest)[1:], f"{far.similarity:.4f}", todo
    for image in findings.singletons:
        yield "only image of its class", "", *tested(image), "", "", "", "add images, or remove it"
