"""The map of the test images: a static picture, and the data for the interactive map of ``page.js``.

Positions, classes and small pictures are stored as compact text: 20,000 images take about 3 MB with their names.
"""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from recollect.report.atlas import as_address
from recollect.report.class_colours import ON_BOTH, ON_DARK, ON_LIGHT, class_colours
from recollect.report.map_layout import FEWEST, MOST_POINTS, Method, Plane, available_method, lay_out
from recollect.report.markup import Markup, element, join, listed
from recollect.report.measured import Contender
from recollect.report.shown_images import Shown
from recollect.report.small_pictures import SIDE, SmallPictures, no_pictures, read_small

MOST_MAPS = 3
"""Number of embeddings shown side by side: before training and the first runs."""
MOST_TILES = 4096
"""Maximum number of images with a small picture; for the others only the name is shown."""
_NO_TILE = 65535
_SIDE = 520  # pixels of the picture that needs no script


def map_section(contenders: Sequence[Contender], shown: Shown, small: SmallPictures | None) -> Markup:
    """All test images on a plane, once per contender, in the colours of their classes."""
    count = len(shown.names)
    if count < 3:
        return element("p", "No map: it needs at least three images.")
    places = np.arange(count)
    if count > MOST_POINTS:
        places = np.sort(np.random.default_rng(0).choice(count, MOST_POINTS, replace=False))
    method = available_method(len(places))
    kinds, labels = np.unique(shown.labels[places], return_inverse=True)
    drawn = contenders[:MOST_MAPS]
    planes = lay_out([contender.vectors[places] for contender in drawn], method)
    figures = [_figure(plane, labels, contender, method) for plane, contender in zip(planes, drawn, strict=True)]
    sheet, tiles, columns = _sheet(places, shown, small)
    data = {
        "data_labels": _text(labels.astype("<u2")),
        "data_tiles": _text(tiles.astype("<u2")),
        "data_files": listed(shown.names[place] for place in places.tolist()),
        "data_kinds": listed(shown.class_names[kind] for kind in kinds.tolist()),
        "data_light": _colours(ON_LIGHT),
        "data_dark": _colours(ON_DARK),
    }
    pictures = element("img", src=sheet, alt="", class_="sheet", hidden=True)
    box = element(
        "div",
        element("div", figures, class_="planes"),
        pictures,
        class_="map",
        data_side=SIDE,
        data_columns=columns,
        **data,
    )
    return join(_words(len(places), count, method, bool((tiles != _NO_TILE).any())), box)


def _colours(luminances: tuple[float, float]) -> str:
    return listed(f"rgb({red} {green} {blue})" for red, green, blue in class_colours(luminances))


def _words(points: int, count: int, method: Method, pictures: bool) -> Markup:
    part = f"{points:,} of the {count:,} images, drawn at random" if points < count else f"all {count:,} images"
    how = (
        "Images that are neighbours in the embedding are neighbours here (t\u2011SNE); distances between clusters and their "
        "sizes mean little."
        if method == "t-SNE"
        else f"The two directions in which the vectors differ most (PCA). {_instead(points)}"
    )
    use = (
        f" Point at a dot, or tap it, to see its {'image' if pictures else 'name'}, and its class in every map. Zoom with the "
        "buttons, the keys + and −, two fingers, or, after a click, the wheel"
        + (": close up, the pictures appear." if pictures else ".")
    )
    words = f"Each dot is an image: {part}, in the colour of its class. {how}"
    return element("p", words, element("span", use, class_="scripted", hidden=True))


def _instead(points: int) -> str:
    """Why a map shows principal components."""
    if points < FEWEST:
        return f"A map that keeps neighbours together needs at least {FEWEST} images."
    return 'A map that keeps neighbours together needs the extra map: pip install "recollect[map]".'


def _figure(plane: Plane, labels: NDArray[np.int64], contender: Contender, method: Method) -> Markup:
    alt = f"Map of {len(plane):,} images, {contender.name}, by {method}; colours are classes."
    return element(
        "figure",
        element("figcaption", element("strong", element("bdi", contender.name))),
        element("img", src=_drawn(plane, labels), alt=alt, class_="plane"),
        data_points=_text(np.round(np.clip(plane, 0, 1) * 65535).astype("<u2")),
    )


def _drawn(plane: Plane, labels: NDArray[np.int64]) -> str:
    """The static picture, for use without the script: dots on a transparent background, for light and dark pages."""
    scale = 2  # drawn larger and reduced, so that dots are round
    radius = scale * min(3.0, max(0.8, 110 / math.sqrt(len(plane))))
    side, reach = scale * _SIDE, math.ceil(radius)
    colours = np.array([(*colour, 255) for colour in class_colours(ON_BOTH)], np.uint8)
    centres = reach + np.round(plane * (side - 1 - 2 * reach)).astype(np.int64)
    canvas = np.zeros((side, side, 4), np.uint8)
    for down in range(-reach, reach + 1):
        for across in range(-reach, reach + 1):
            if down * down + across * across <= radius * radius:
                canvas[centres[:, 1] + down, centres[:, 0] + across] = colours[labels % len(colours)]
    picture = Image.fromarray(canvas).resize((_SIDE, _SIDE), Image.Resampling.BOX)
    return _address(picture.quantize(128, Image.Quantize.FASTOCTREE), "png", optimize=True)


def _sheet(places: NDArray[np.int64], shown: Shown, small: SmallPictures | None) -> tuple[str, NDArray[np.int64], int]:
    """The small pictures as one image, the tile of every point, and how many columns there are."""
    tiles = np.full(len(places), _NO_TILE)
    wanted = places
    if len(places) > MOST_TILES:
        wanted = np.sort(np.random.default_rng(1).choice(places, MOST_TILES, replace=False))
    found = no_pictures()
    if shown.images is not None:
        known = found if small is None else small.of(wanted)
        found = known.joined(read_small(shown.images, np.setdiff1d(wanted, known.places)))
    columns = max(1, math.ceil(math.sqrt(len(found.places))))
    rows = max(1, math.ceil(len(found.places) / columns))
    sheet = Image.new("RGB", (columns * SIDE, rows * SIDE), "white")
    position = {int(place): number for number, place in enumerate(places)}
    for number, (place, pixels, shape) in enumerate(zip(found.places, found.pixels, found.shapes, strict=True)):
        width, height = (SIDE, max(1, round(SIDE / shape))) if shape >= 1 else (max(1, round(SIDE * shape)), SIDE)
        picture = Image.fromarray(pixels).resize((width, height))
        corner = (number % columns * SIDE + (SIDE - width) // 2, number // columns * SIDE + (SIDE - height) // 2)
        sheet.paste(picture, corner)
        tiles[position[int(place)]] = number
    return _address(sheet, "jpeg", quality=70, optimize=True), tiles, columns


def _address(picture: Image.Image, kind: str, **options: object) -> str:
    buffer = io.BytesIO()
    picture.save(buffer, kind.upper(), **options)
    return as_address(kind, buffer.getvalue())


def _text(values: NDArray[np.uint16]) -> str:
    return base64.b64encode(np.ascontiguousarray(values).tobytes()).decode("ascii")
