"""Possible problems in the data: suspected labels, near-duplicates, lonely images."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from recollect.common.text import in_decimals
from recollect.data import ImageSet
from recollect.report.atlas import Atlas
from recollect.report.findings import KINDS, Duplicates, Findings
from recollect.report.gallery import TOP, Entry, unfolding
from recollect.report.markup import Child, Markup, breakable, element, join, listed, name_of, table
from recollect.report.neighbours import AGREEING, AMONG, CLEAR, FEW, Lonely, Suspect
from recollect.report.shown_images import Shown
from recollect.search.exact import Neighbours

_SHOWN, _MORE = 8, 24
_GROUPS, _LONELY = 6, 10  # shown at once: full rows of two or three groups, of ten pictures
_MEMBERS = 6  # pictures of one group


def data_section(
    findings: Findings, found: Neighbours, shown: Shown, atlas: Atlas, training: Atlas | None, of: str | None = None
) -> Markup:
    """Everything that was found, the gravest first, with what to do about it.

    ``of``: the run whose vectors were looked at, where there are several.
    """
    counts = {kind: [group for group in findings.duplicates if group.kind == kind] for kind in KINDS}
    rows: list[list[Child]] = [
        ["Suspected wrong labels", f"{len(findings.suspects):,}", "check the label of each"],
        ["Lonely images", f"{len(findings.lonely or []):,}", "check whether they belong to the set"],
        ["Only image of their class", f"{len(findings.alone):,}", "add images, or remove them: they cannot be scored"],
    ]
    if findings.compared:
        looked_for = KINDS if findings.compared_training else KINDS[1:]
        rows[1:1] = [[f"Near-duplicates {kind}", _groups_found(counts[kind]), _ADVICE[kind]] for kind in looked_for]
    rows = [[what, count, todo if str(count)[0] != "0" else "nothing"] for what, count, todo in rows]
    if findings.lonely is None:
        rows[-2][1:] = ["not judged", "nothing: the similarities of these vectors vary too much"]
    if findings.copies:
        rows.insert(1, ["Test images that were trained on", f"{len(findings.copies):,}", _ADVICE[KINDS[0]]])
    parts: list[Markup | None] = [
        table(["finding", "found", "what to do"], rows, caption="What to check", numbers=False),
        None if of is None else element("p", "Labels and similarities: judged by ", name_of(of), ".", class_="note"),
        element("p", _labels_checked(shown.split), class_="note"),
        element("p", _compared(findings, "training" if shown.split == "train" else "test"), class_="note"),
    ]
    if not atlas.at_hand:
        parts.append(element("p", "No pictures: the images are not available."))
        return join(*parts)
    if findings.suspects:
        parts += [
            element("h3", "Suspected wrong labels"),
            element(
                "p",
                f"At least {AGREEING} of the {AMONG} nearest images belong to one other class (all {AMONG}, if their own has "
                f"{FEW} images or fewer), and none of the {CLEAR} nearest to their own (if the other class has fewer "
                "images: none of as many). Either the label is wrong, or two classes cannot be distinguished. Those with the "
                "largest gap between the similarities to the two classes come first.",
            ),
            *_unfolded(findings.suspects, lambda some: _suspects(some, found, shown, atlas)),
        ]
    for kind, groups in counts.items():
        if groups:
            parts += [
                element("h3", f"Near-duplicates {kind}"),
                element("p", _REASON[kind]),
                *_unfolded(groups, lambda some: _groups(some, findings, shown, atlas, training), _GROUPS),
            ]
    if findings.lonely:
        parts += [
            element("h3", "Lonely images"),
            element("p", "Far from every other image: damaged, of another kind, or of a class that needs more images."),
            *_unfolded(findings.lonely, lambda some: _lonely(some, shown, atlas), _LONELY),
        ]
    return join(*parts)


_ADVICE = {
    KINDS[0]: "keep them only in train or only in test: otherwise the test is too easy",
    KINDS[1]: "give them the same class, or remove all but one",
    KINDS[2]: "keep one each if they are copies rather than a series",
}
_REASON = {
    KINDS[0]: "A test image and a training image look alike. If they are copies, the test is too easy.",
    KINDS[
        1
    ]: "Images with different labels look alike. If they are copies, one of them counts as wrong whatever the model "
    "answers.",
    KINDS[2]: "Images of one class look alike. If they are copies, each finds the other, which makes r@1 too good.",
}


def _labels_checked(split: str) -> str:
    if split == "train":
        return "Labels: training images are checked. The model has learnt their labels, so fewer wrong ones stand out."
    return (
        f"Labels: only images of the split “{split}” are checked. Those of the training images: "
        "recollect report RUN --split train --out FILE."
    )


def _groups_found(groups: Sequence[Duplicates]) -> str:
    return "1 group" if len(groups) == 1 else f"{len(groups):,} groups"


def _compared(findings: Findings, kind: str) -> str:
    if not findings.compared:
        said = "Near-duplicates were not looked for: the images are not at hand."
    else:
        part = "all" if findings.compared_training == findings.training else f"{findings.compared_training:,} of the"
        beside = f" and {part} {findings.training:,} training images" if findings.compared_training else ""
        said = (
            f"Near-duplicates: {findings.compared:,} {kind} images{beside} were compared by their pixels. Photos of one series "
            "and similar objects on a plain background may be found too: look before you remove any."
        )
    return f"{said} The whole list as a table: recollect report RUN --csv FILE."


def _unfolded(
    entries: Sequence[Entry], show: Callable[[Sequence[Entry]], Markup], first: int = _SHOWN
) -> list[Markup | None]:
    """The first entries, and more of them below."""
    hidden = len(entries) - first - _MORE
    return [
        show(entries[:first]),
        unfolding(entries[first : first + _MORE], show),
        element("p", f"{hidden:,} more in the CSV list.", class_="note") if hidden > 0 else None,
    ]


def _suspects(suspects: Sequence[Suspect], found: Neighbours, shown: Shown, atlas: Atlas) -> Markup:
    blocks = []
    for suspect in suspects:
        own, other = shown.class_names[int(shown.labels[suspect.image])], shown.class_names[suspect.suggested]
        words = join(
            "labelled ",
            element("strong", name_of(own)),
            f"; {suspect.agreeing} of its {suspect.neighbours} nearest are ",
            element("strong", name_of(other)),
            f" (mean similarity {in_decimals(suspect.similarity, 2)}; ",
            "no other image of its own class)"
            if np.isnan(suspect.own)
            else f"the nearest of its own class {in_decimals(suspect.own, 2)})",
        )
        items = [
            _item(int(index), f"Neighbour {number}", shown, atlas, float(similarity))
            for number, (index, similarity) in enumerate(
                zip(found.indices[suspect.image], found.similarities[suspect.image], strict=True), 1
            )
            if number <= TOP
        ]
        blocks.append(_card(suspect.image, words, items, shown, atlas, [own, other]))
    return element("div", blocks, class_="gallery")


def _groups(
    groups: Sequence[Duplicates], findings: Findings, shown: Shown, atlas: Atlas, training: Atlas | None
) -> Markup:
    blocks = []
    what, trained = "Training image" if findings.part == "train" else "Test image", findings.training_images
    for group in groups:
        items = [_item(image, what, shown, atlas) for image in group.images[:_MEMBERS]]
        if training is not None and trained is not None:
            items += [_trained_item(image, training, trained) for image in group.training[:_MEMBERS]]
        left = len(group.images) + len(group.training) - len(items)
        words = join(
            f"{len(group.images) + len(group.training):,} images",
            f" ({len(group.training):,} of them trained on)" if group.training else None,
            f", correlation at least {np.floor(100 * group.similarity) / 100:.2f}",
            f"; {left:,} not shown" if left else None,
        )
        blocks.append(
            element(
                "article",
                element("p", words, class_="note-line"),
                element("ol", items, class_="strip plain"),
                class_="group",
                data_pics=True,
                data_classes=listed(group.classes),
            )
        )
    return element("div", blocks, class_="groups")


def _lonely(lonely: Sequence[Lonely], shown: Shown, atlas: Atlas) -> Markup:
    items = [_item(one.image, "Lonely image", shown, atlas, one.similarity, "nearest ") for one in lonely]
    return element("ol", items, class_="strip plain wide", data_pics=True)


def _card(
    image: int, words: Markup, items: Sequence[Markup], shown: Shown, atlas: Atlas, classes: Sequence[str]
) -> Markup:
    name = shown.class_names[int(shown.labels[image])]
    figure = element(
        "figure",
        atlas.image(image, f"Image of class {name}"),
        element("figcaption", breakable(shown.names[image])),
        class_="asked",
    )
    body = element("div", element("p", words, class_="note-line"), element("ol", items, class_="strip plain"))
    return element("article", figure, body, class_="query", data_pics=True, data_classes=listed(classes))


def _item(
    image: int, what: str, shown: Shown, atlas: Atlas, similarity: float | None = None, before: str = ""
) -> Markup:
    name = shown.class_names[int(shown.labels[image])]
    said = f"{what}: class {name}" + ("" if similarity is None else f", similarity {in_decimals(similarity, 3)}")
    caption = element(
        "figcaption",
        None if similarity is None else f"{before}{in_decimals(similarity, 2)}",
        breakable(name),
        element("span", breakable(_short(shown.names[image])), class_="file"),
    )
    return element(
        "li",
        element("figure", atlas.image(image, said, similarity), caption),
        data_classes=listed([name]) if before else None,
    )


def _trained_item(image: int, training: Atlas, trained: ImageSet) -> Markup:
    name = trained.class_names[int(trained.labels[image])]
    caption = element(
        "figcaption",
        element("span", "trained on", class_="badge"),
        breakable(name),
        element("span", breakable(_short(trained.names[image])), class_="file"),
    )
    return element("li", element("figure", training.image(image, f"Training image: class {name}"), caption))


def _short(name: str) -> str:
    """The last part of a file's name; the whole is shown when the picture is enlarged."""
    return name.rsplit("/", 1)[-1]
