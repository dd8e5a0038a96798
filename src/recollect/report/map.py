"""Pictures of many images: small copies, the atlas of a page's thumbnails, and the map of the test images.

``Atlas`` is one image with every thumbnail of a page, ``SmallPictures`` are for near-duplicates and for the map. The map lays
vectors out on a plane, so that neighbours stay neighbours as far as two dimensions allow: with the extra ``map`` by openTSNE,
otherwise by the two principal components, which need no package and keep only the coarsest differences. The measurements
behind that choice are in docs/report.md. The page has it as a static picture and as data for ``page.js``: 20,000 images take
about 3 MB with their names.
"""

from __future__ import annotations

import base64
import io
import math
import os
import warnings
from bisect import bisect_left
from collections.abc import Callable, Sequence
from colorsys import hls_to_rgb
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, fields
from importlib.util import find_spec
from itertools import product
from threading import Event, Lock
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps

from recollect.common.console import ProgressLine
from recollect.common.errors import RecollectError, require
from recollect.data import ImageSet
from recollect.report.markup import Markup, element, render
from recollect.report.results import ModelResult, ReportImages, random_part
from recollect.search.exact import nearest_unchecked

BUDGET = 4 << 20
"""Bytes of an atlas; a third more as text in the page."""
_SIDES = (192, 144, 112, 88, 64)
SIDE = 32
"""Side of a small picture in pixels, for any aspect ratio."""
FINE = 64
"""Side of the grey picture by which two images that look alike are compared more closely."""
_SIGNATURE = 16
_MANY = 2000  # number of images from which a progress line is shown

MOST_POINTS = 20_000
"""Maximum number of images on a map; if there are more, a random part."""
MOST_MAPS = 3
"""Number of embeddings shown side by side: before training and the first runs."""
MOST_TILES = 4096
"""Maximum number of images with a small picture; for the others only the name is shown."""
_NO_TILE = 65535
_PLANE_SIDE = 520  # pixels of the picture that needs no script
FEWEST = 50
"""Number of images from which neighbourhoods show more than principal components."""
_PERPLEXITY = 30
# A third of openTSNE's iterations, and coarser sums over distant points: docs/report.md has what that costs and saves.
_EARLY, _LATER, _THETA = 100, 150, 0.8
_BETWEEN = 50  # iterations between two steps of the progress line
_COMPONENTS = 50  # enough for neighbourhoods, and neighbours are found in a tenth of the time

ON_LIGHT, ON_DARK, ON_BOTH = (0.07, 0.285), (0.155, 0.5), (0.155, 0.285)
"""Relative luminances of colours for a light card, for a dark one, and for a picture that may be on either."""
MOST_COLOURS = 42
"""Number of different colours; more could not be told apart."""
_GOLDEN_ANGLE = 137.508  # degrees: any first few hues are spread evenly around the circle
_AGAIN = 21  # after so many steps of that angle hues nearly repeat, so the order of luminances changes
_SATURATION = 0.8

Method = Literal["t-SNE", "PCA"]
Plane = NDArray[np.float64]
Colour = tuple[int, int, int]


class Atlas:
    """All thumbnails of a page as one image: each is a tile of it, shown by its position. Keeps pages small.

    A page requests pictures while it is built (``Atlas.image``) and adds ``Atlas.style()`` to its style sheet at the end.
    Tiles are as large as ``budget`` allows, so the size of a page is bounded for any photos.

    Args:
        images: the set, each image of which is read once; None if it is not available.
        key: prefix of the tiles of this atlas in the style sheet.
        budget: bytes of the encoded atlas.
    """

    def __init__(self, images: ImageSet | None, key: str = "a", budget: int = BUDGET) -> None:
        self._images, self.key, self.budget = images, key, budget
        self._read: dict[int, Image.Image | None] = {}
        self._tiles: dict[int, int] = {}

    @property
    def at_hand(self) -> bool:
        """Whether there are images to show."""
        return self._images is not None

    def image(self, index: int, alt: str, similarity: float | None = None) -> Markup:
        """A picture; an empty frame if the file can no longer be read.

        Args:
            index: number of the image. alt: text alternative.
            similarity: similarity to the query, shown when the picture is enlarged.
        """
        images = self._images
        if images is not None and index not in self._read:
            try:
                picture = images.read(index, at_least=_SIDES[0])
                picture.thumbnail((_SIDES[0], _SIDES[0]), Image.Resampling.LANCZOS)
                self._read[index] = picture
            except RecollectError:
                self._read[index] = None
        if images is None or self._read[index] is None:
            return element("span", "no picture", class_="missing", role="img", aria_label=alt)
        tile = self._tiles.setdefault(index, len(self._tiles))
        # The number of columns is known only at the end, so a tile has a number, and the style sheet a rule for each.
        return element(
            "span",
            class_=f"pic {self.key} {self.key}{tile}",
            role="img",
            aria_label=alt,
            title=images.names[index],
            data_class=images.class_names[int(images.labels[index])],
            data_similarity=None if similarity is None else f"{similarity:.3f}",
        )

    def style(self) -> str:
        """The rules that show the tiles, with the atlas inside."""
        tiles = [picture for index in self._tiles if (picture := self._read[index]) is not None]
        if not tiles:
            return ""
        largest = max(max(tile.size) for tile in tiles)
        for side in sorted({min(side, largest) for side in _SIDES}, reverse=True):
            sheet, columns, rows = _laid_out(tiles, side)
            address, size = _encoded(sheet)
            if size <= self.budget:
                break
        across, down = max(1, columns - 1), max(1, rows - 1)
        places = "".join(
            f".{self.key}{tile}{{background-position:{100 * (tile % columns) / across:.4g}% "
            f"{100 * (tile // columns) / down:.4g}%}}\n"
            for tile in range(len(tiles))
        )
        shared = f"background-image:url({address});background-size:{100 * columns}% {100 * rows}%"
        return f".pic.{self.key}{{{shared}}}\n{places}"


def _laid_out(tiles: Sequence[Image.Image], side: int) -> tuple[Image.Image, int, int]:
    """All tiles in a grid, each in the middle of its square, which it fills; and how many columns and rows there are."""
    columns = max(1, math.ceil(math.sqrt(len(tiles))))
    rows = max(1, math.ceil(len(tiles) / columns))
    sheet = Image.new("RGB", (columns * side, rows * side), "white")
    for number, tile in enumerate(tiles):
        small = ImageOps.contain(tile, (side, side)) if max(tile.size) < side else tile.copy()
        small.thumbnail((side, side), Image.Resampling.LANCZOS)
        left, top = (side - small.width) // 2, (side - small.height) // 2
        sheet.paste(small, (number % columns * side + left, number // columns * side + top))
    return sheet, columns, rows


def _encoded(picture: Image.Image) -> tuple[str, int]:
    """A picture as a ``data:`` address and its bytes: JPEG, or for a grey drawing PNG, if that is smaller."""
    red, green, blue = picture.split()
    if not red.tobytes() == green.tobytes() == blue.tobytes():
        return _address(picture, "jpeg", quality=80, optimize=True)
    png, jpeg = _address(red.quantize(16), "png", optimize=True), _address(red, "jpeg", quality=80, optimize=True)
    return min(png, jpeg, key=lambda version: version[1])


def _address(picture: Image.Image, kind: str, **options: object) -> tuple[str, int]:
    """A picture as a ``data:`` address, and its bytes."""
    buffer = io.BytesIO()
    picture.save(buffer, kind.upper(), **options)
    return f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode('ascii')}", len(buffer.getvalue())


def data_address(image: Image.Image, side: int) -> str:
    """A small copy of ``image`` as a ``data:`` address, for a page with few pictures."""
    small = image.convert("RGB")
    small.thumbnail((side, side), Image.Resampling.LANCZOS)
    return _encoded(small)[0]


@dataclass(frozen=True)
class SmallPictures:
    """Small copies of some images of a set.

    Attributes:
        places: their numbers in the set, ascending. pixels: M × SIDE × SIDE × 3. shapes: M times width / height.
        fine: M × FINE × FINE, grey.
    """

    places: NDArray[np.int64]
    pixels: NDArray[np.uint8]
    shapes: NDArray[np.float64]
    fine: NDArray[np.uint8]

    def joined(self, other: SmallPictures) -> SmallPictures:
        """These and then those of ``other``."""
        return SmallPictures(
            *(np.concatenate([getattr(each, part.name) for each in (self, other)]) for part in fields(self))
        )

    def signatures(self) -> NDArray[np.float32]:
        """M × 768 rows of length 1 whose product is the correlation of two pictures at 16 × 16 pixels.

        A picture of one colour has a row of zeros and is similar to no other. That two pictures are copies is decided by
        ``checks.group_copies``.
        """
        step = SIDE // _SIGNATURE
        # Strided sums: numpy's mean over two inner axes is slower, and so is avg_pool2d.
        sums = np.zeros((len(self.pixels), _SIGNATURE, _SIGNATURE, 3), np.float32)
        for down, across in product(range(step), repeat=2):
            sums += self.pixels[:, down::step, across::step]
        rows: NDArray[np.float32] = sums.reshape(len(sums), -1) / np.float32(step**2)
        rows -= rows.mean(axis=1, keepdims=True)
        length = np.linalg.norm(rows, axis=1, keepdims=True)
        unit: NDArray[np.float32] = np.divide(rows, length, out=np.zeros_like(rows), where=length > 1e-3)
        return unit


def read_small(images: ImageSet, places: Sequence[int] | NDArray[np.int64]) -> SmallPictures:
    """Small copies of the images at ``places``; those that cannot be read are left out."""
    places = np.unique(np.asarray(places, np.int64))

    pixels = np.empty((len(places), SIDE, SIDE, 3), np.uint8)
    fine = np.empty((len(places), FINE, FINE), np.uint8)
    shapes = np.zeros(len(places))

    def shrunk(image: Image.Image, side: int) -> NDArray[np.uint8]:
        return np.asarray(image.resize((side, side), Image.Resampling.BOX if min(image.size) >= side else None))

    def read(row: int) -> None:
        with suppress(RecollectError):
            image = images.read(int(places[row]), at_least=FINE)
            pixels[row], fine[row] = shrunk(image, SIDE), shrunk(image.convert("L"), FINE)
            shapes[row] = image.width / image.height

    with (
        ThreadPoolExecutor(min(8, os.cpu_count() or 1), "recollect-small") as pool,
        ProgressLine("small pictures", len(places), quiet=None if len(places) >= _MANY else True) as line,
    ):
        for _ in pool.map(read, range(len(places))):
            line.advance()
    readable = shapes > 0
    return SmallPictures(places[readable], pixels[readable], shapes[readable], fine[readable])


def map_section(models: Sequence[ModelResult], images: ReportImages, small: SmallPictures | None) -> Markup:
    """All test images on a plane, once per model, in the colours of their classes."""
    count = len(images.names)
    if count < 3:
        return element("p", "No map: it needs at least three images.")
    places = random_part(count, MOST_POINTS)
    method = available_method(len(places))
    kinds, labels = np.unique(images.labels[places], return_inverse=True)
    planes = lay_out([model.vectors[places] for model in models[:MOST_MAPS]], method)
    sheet, tiles, columns = _sheet(places, images, small)
    light, dark = ([f"rgb({r} {g} {b})" for r, g, b in class_colours(range_)] for range_ in (ON_LIGHT, ON_DARK))
    return render(
        "map.html",
        points=len(places),
        count=count,
        method=method,
        fewest=FEWEST,
        pictures=bool((tiles != _NO_TILE).any()),
        side=SIDE,
        columns=columns,
        labels=_text(labels),
        tiles=_text(tiles),
        files=[images.names[place] for place in places.tolist()],
        kinds=[images.class_names[kind] for kind in kinds.tolist()],
        light=light,
        dark=dark,
        maps=[
            (model.name, draw_plane(plane, labels), _text(np.round(np.clip(plane, 0, 1) * 65535)))
            for model, plane in zip(models, planes, strict=False)
        ],
        sheet=sheet,
    )


def _text(values: NDArray[np.generic]) -> str:
    """Whole numbers below 65536 as compact text."""
    return base64.b64encode(values.astype("<u2").tobytes()).decode("ascii")


def draw_plane(plane: Plane, labels: NDArray[np.int64]) -> str:
    """The static picture, for use without the script: dots on a transparent background, for light and dark pages."""
    scale = 2  # drawn larger and reduced, so that dots are round
    radius = scale * min(3.0, max(0.8, 110 / math.sqrt(len(plane))))
    side, reach = scale * _PLANE_SIDE, math.ceil(radius)
    colours = np.array([(*colour, 255) for colour in class_colours(ON_BOTH)], np.uint8)
    centres = reach + np.round(plane * (side - 1 - 2 * reach)).astype(np.int64)
    canvas = np.zeros((side, side, 4), np.uint8)
    for down, across in product(range(-reach, reach + 1), repeat=2):
        if down * down + across * across <= radius * radius:
            canvas[centres[:, 1] + down, centres[:, 0] + across] = colours[labels % len(colours)]
    picture = Image.fromarray(canvas).resize((_PLANE_SIDE, _PLANE_SIDE), Image.Resampling.BOX)
    return _address(picture.quantize(128, Image.Quantize.FASTOCTREE), "png", optimize=True)[0]


def _sheet(
    places: NDArray[np.int64], images: ReportImages, small: SmallPictures | None
) -> tuple[str, NDArray[np.int64], int]:
    """The small pictures as one image, the tile of every point, and how many columns there are."""
    tiles = np.full(len(places), _NO_TILE)
    pictured = places[random_part(len(places), MOST_TILES, seed=1)]
    pictures: list[Image.Image] = []
    if images.images is not None:
        unread = pictured if small is None else np.setdiff1d(pictured, small.places)
        for some in filter(None, (small, read_small(images.images, unread))):
            for row in np.flatnonzero(np.isin(some.places, pictured)).tolist():
                shape = float(some.shapes[row])
                size = (SIDE, max(1, round(SIDE / shape))) if shape >= 1 else (max(1, round(SIDE * shape)), SIDE)
                tiles[np.searchsorted(places, some.places[row])] = len(pictures)
                pictures.append(Image.fromarray(some.pixels[row]).resize(size))
    sheet, columns, _ = _laid_out(pictures, SIDE)
    return _address(sheet, "jpeg", quality=70, optimize=True)[0], tiles, columns


def available_method(count: int) -> Method:
    """The method that lays out ``count`` vectors."""
    return "t-SNE" if count >= FEWEST and find_spec("openTSNE") is not None else "PCA"


def lay_out(embeddings: Sequence[NDArray[np.float32]], method: Method) -> list[Plane]:
    """N × 2 positions from 0 to 1 for every embedding, with equal scales on both axes.

    Args:
        embeddings: vectors of the same N images by different weights, each N × d of length 1. The layouts are rotated and
            mirrored to resemble the first one.
        method: see ``available_method``.
    """
    reduced = [principal_components(vectors, _COMPONENTS if method == "t-SNE" else 2) for vectors in embeddings]
    planes = _neighbourhoods(reduced) if method == "t-SNE" else reduced
    return [_fitted(plane if not place else turned_like(plane, planes[0])) for place, plane in enumerate(planes)]


def principal_components(vectors: NDArray[np.float32], count: int) -> Plane:
    """The first ``count`` principal components, or as many as there are; at least two columns."""
    rows = torch.from_numpy(np.ascontiguousarray(vectors, np.float32))
    rows = rows - rows.mean(dim=0)
    _, directions = torch.linalg.eigh((rows.T @ rows).double())
    components: Plane = (rows @ directions.flip(1)[:, :count].float()).double().numpy()
    # The sign of an eigenvector is arbitrary: put the longer tail on the right and at the bottom.
    components *= np.where((components**3).sum(axis=0) < 0, -1.0, 1.0)
    return components if components.shape[1] > 1 else np.column_stack([components, np.zeros(len(components))])


def _neighbourhoods(embeddings: Sequence[Plane]) -> list[Plane]:
    """A map of each embedding, all at once: on two cores that saves 45 % of the time, two threads for one map a quarter."""
    maps = len(embeddings)
    jobs = max(1, torch.get_num_threads() // maps)
    title = f"map of {len(embeddings[0]):,} images" if maps == 1 else f"{maps} maps of {len(embeddings[0]):,} images"
    stopped, counting = Event(), Lock()
    with warnings.catch_warnings(), ProgressLine(title, maps * (_EARLY + _LATER), "rounds") as line:
        warnings.simplefilter("ignore")

        def done(*_: object) -> bool:
            with counting:
                line.advance(_BETWEEN)
            return stopped.is_set()

        with ThreadPoolExecutor(maps) as pool:
            begun = [pool.submit(_neighbourhood, reduced, jobs, done) for reduced in embeddings]
            try:
                return [one.result() for one in begun]
            except BaseException:
                stopped.set()
                raise


def _neighbourhood(reduced: Plane, jobs: int, done: Callable[..., bool]) -> Plane:
    opentsne = require("openTSNE", "map", "a map of neighbourhoods")
    start = reduced[:, :2]
    indices, distances = _nearest(reduced, min(3 * _PERPLEXITY, len(reduced) - 1))
    neighbours = opentsne.nearest_neighbors.PrecomputedNeighbors(indices, distances)
    perplexity = min(_PERPLEXITY, (len(reduced) - 1) // 3)
    affinities = opentsne.affinity.PerplexityBasedNN(knn_index=neighbours, perplexity=perplexity, n_jobs=jobs)
    placed = opentsne.TSNE(
        initialization=start / (start[:, 0].std() or 1.0) * 1e-4,
        early_exaggeration_iter=_EARLY,
        n_iter=_LATER,
        theta=_THETA,
        n_jobs=jobs,
        random_state=0,
        callbacks=done,
        callbacks_every_iters=_BETWEEN,
    ).fit(affinities=affinities)
    return np.asarray(placed, np.float64)


def _nearest(rows: Plane, count: int) -> tuple[NDArray[np.int64], Plane]:
    """The nearest other rows of each row, and their Euclidean distances: exact, in half the time of openTSNE's own search."""
    # |x − y|² = |x|² − 2 (x·y − |y|²/2): the nearest has the largest product with (y, −|y|²/2).
    squares = (rows**2).sum(axis=1)
    items = np.column_stack([rows, -squares / 2]).astype(np.float32)
    queries = np.column_stack([rows, np.ones(len(rows))]).astype(np.float32)
    nearest = nearest_unchecked(queries, items, count, own=np.arange(len(rows)))
    apart: Plane = np.sqrt(np.maximum(squares[:, None] - 2 * nearest.similarities.astype(np.float64), 0))
    return nearest.indices, apart


def turned_like(plane: Plane, like: Plane) -> Plane:
    """``plane`` rotated and mirrored so that its points are as close as possible to those of ``like`` (Procrustes)."""
    here, there = plane - plane.mean(axis=0), like - like.mean(axis=0)
    left, _, right = np.linalg.svd(here.T @ there)
    return np.asarray(here @ (left @ right), np.float64)


def _fitted(plane: Plane) -> Plane:
    low, high = plane.min(axis=0), plane.max(axis=0)
    scale = float((high - low).max()) or 1.0
    fitted: Plane = (plane - (low + high) / 2) / scale + 0.5
    return fitted


def class_colours(luminances: tuple[float, float]) -> list[Colour]:
    """``MOST_COLOURS`` colours in a range of relative luminance, for the static map and for the script alike.

    Class n has colour n modulo their number. Neighbouring numbers get hues far apart and different luminances, which keep a
    contrast of at least 3:1 (WCAG 2.2, graphical objects) with the card behind them, ``--raised`` of ``style.css``.
    """
    low, high = luminances
    middle = ((low ** (1 / 3) + high ** (1 / 3)) / 2) ** 3  # equal steps of the cube root look equal
    steps = (low, high, middle)
    return [
        _of_luminance(n * _GOLDEN_ANGLE % 360 / 360, steps[(n + n // _AGAIN) % len(steps)]) for n in range(MOST_COLOURS)
    ]


def luminance(colour: Colour) -> float:
    """Relative luminance by WCAG's formula: 0 is black, 1 white."""
    red, green, blue = (
        part / 12.92 if (part := value / 255) <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for value in colour
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _of_luminance(hue: float, target: float) -> Colour:
    """The colour of that hue: lightness alone does not tell how bright a colour looks, yellow is far brighter than blue."""
    lightness = bisect_left(range(4096), target, key=lambda step: luminance(_rgb(hue, step / 4096)))
    return _rgb(hue, lightness / 4096)


def _rgb(hue: float, lightness: float) -> Colour:
    red, green, blue = (round(255 * part) for part in hls_to_rgb(hue, lightness, _SATURATION))
    return red, green, blue
