"""Instance search made small, in the true file formats: facades that are photographed from different places.

A landmark is a flat scene of coloured polygons, drawn once from its number. A photo of it is a random homography of
the scene (a plane seen from elsewhere), another light, an own size and shape. Hard photos are turned and lit further
and partly covered. Training, validation, test and distractors show different landmarks.

    gldv1/train.csv, gldv1/train/<id>.jpg
    revisited/roxford5k/gnd_roxford5k.pkl, revisited/roxford5k/jpg/<name>.jpg; rparis6k alike
    revisited/revisitop1m/revisitop1m.txt, revisited/revisitop1m/jpg/<folder>/<name>.jpg
    sfm/retrieval-SfM-120k/retrieval-SfM-120k-val-eccv2020.pkl, sfm/retrieval-SfM-120k/ims/…
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

CANVAS = 144


def scene(number: int) -> Image.Image:
    """The landmark of that number, face on."""
    random = np.random.default_rng([7, number])
    image = Image.new("RGB", (CANVAS, CANVAS), tuple(random.integers(90, 170, 3).tolist()))
    draw = ImageDraw.Draw(image)
    for _ in range(14):
        centre, radius = random.uniform(8, CANVAS - 8, 2), random.uniform(8, 34)
        angles = np.sort(random.uniform(0, 2 * np.pi, int(random.integers(3, 7))))
        points = centre + radius * np.stack([np.cos(angles), np.sin(angles)], axis=1)
        draw.polygon([tuple(point) for point in points.tolist()], fill=tuple(random.integers(0, 256, 3).tolist()))
    return image


def photo(number: int, view: int, hard: bool = False) -> Image.Image:
    """One photo of a landmark."""
    random = np.random.default_rng([11, number, view, int(hard)])
    longer, ratio = int(random.integers(56, 97)), float(random.uniform(0.6, 1.0))
    width, height = (longer, round(longer * ratio)) if random.random() < 0.5 else (round(longer * ratio), longer)
    shift = 0.22 if hard else 0.12
    corners = np.array([[0, 0], [1, 0], [1, 1], [0, 1]], dtype=np.float64)
    seen = CANVAS * (0.08 + 0.84 * corners + random.uniform(-shift, shift, (4, 2)))
    # ``transform`` asks where each pixel comes from: the homography from the photo's corners to the scene's.
    coefficients = _homography(corners * [width, height], seen)
    image = scene(number).transform(
        (width, height), Image.Transform.PERSPECTIVE, coefficients, Image.Resampling.BICUBIC
    )
    if hard:
        left, top = random.integers(0, width // 2), random.integers(0, height // 2)
        box = [left, top, left + width // 3, top + height // 3]
        ImageDraw.Draw(image).rectangle([int(side) for side in box], fill=tuple(random.integers(0, 256, 3).tolist()))
    pixels = np.asarray(image, dtype=np.float64) / 255
    strength = 0.55 if hard else 0.3
    tint, gamma = random.uniform(1 - strength, 1 + strength, 3), np.exp(random.uniform(-strength, strength))
    pixels = np.clip(pixels * tint, 0, 1) ** gamma + random.normal(0, 0.03, pixels.shape)
    return Image.fromarray((255 * pixels.clip(0, 1)).round().astype(np.uint8))


def _homography(source: np.ndarray[Any, Any], target: np.ndarray[Any, Any]) -> list[float]:
    rows, values = [], []
    for (x, y), (u, v) in zip(source.tolist(), target.tolist(), strict=True):
        rows += [[x, y, 1, 0, 0, 0, -u * x, -u * y], [0, 0, 0, x, y, 1, -v * x, -v * y]]
        values += [u, v]
    solution: list[float] = np.linalg.solve(np.array(rows), np.array(values)).tolist()
    return solution


def _save(image: Image.Image, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path, format="JPEG", quality=92)


def make_gldv1(root: Path, landmarks: range, each: int = 6) -> None:
    """Google Landmarks: a list of addresses, some of whose photos are gone. Every second photo is a hard one."""
    lines = ["id,url,landmark_id"]
    for number in landmarks:
        for view in range(each):
            identity = f"{1000 * number + view:016x}"
            lines.append(f'{identity},"http://example.org/{identity}.jpg",{number}')
            _save(photo(number, view, hard=view % 2 == 1), root / "train" / f"{identity}.jpg")
        lines.append(f'{1000 * number + 999:016x},"http://example.org/gone.jpg",{number}')
    lines.append("ffffffffffffffff,http://example.org/none.jpg,None")
    (root / "train.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")


def make_sfm(root: Path, landmarks: range, each: int = 5) -> None:
    """SfM-120k's validation: half of the photos hard; the query is an image of the database."""
    folder = root / "retrieval-SfM-120k"
    identities, queries, truth = [], [], []
    for number in landmarks:
        first = len(identities)
        for view in range(each):
            identity = f"{number:04d}{view:02d}abcdef{number:04x}{view:02x}"
            identities.append(identity)
            place = folder / "ims" / identity[-2:] / identity[-4:-2] / identity[-6:-4] / identity
            _save(photo(number, view, hard=view % 2 == 1), place)
        queries.append(first)
        truth.append({"ok": np.arange(first + 1, first + each), "junk": np.empty(0, np.int64)})
    content = {"cids": identities, "qidx": np.array(queries), "gnd": truth}
    (folder / "retrieval-SfM-120k-val-eccv2020.pkl").write_bytes(pickle.dumps(content))


def make_revisited(root: Path, name: str, landmarks: range, each: int = 3) -> None:
    """Revisited Oxford or Paris: a query with a box, easy and hard photos and one to be ignored, a landmark."""
    folder, names, queries, truth = root / name, [], [], []
    for number in landmarks:
        lists: dict[str, Any] = {"easy": [], "hard": [], "junk": []}
        for kind, count in (("easy", each), ("hard", each), ("junk", 1)):
            for view in range(count):
                lists[kind].append(len(names))
                names.append(f"{kind}_{number:03d}_{view}")
                _save(
                    photo(number, 100 + view + 50 * (kind == "junk"), kind != "easy"), folder / f"jpg/{names[-1]}.jpg"
                )
        queries.append(f"query_{number:03d}")
        image = photo(number, 200)
        _save(image, folder / "jpg" / f"{queries[-1]}.jpg")
        width, height = image.size
        truth.append({"bbx": [0.06 * width, 0.05 * height, 0.97 * width, 0.96 * height], **lists})
    content = {"imlist": names, "qimlist": queries, "gnd": truth}
    (folder / f"gnd_{name}.pkl").write_bytes(pickle.dumps(content))


def make_distractors(root: Path, landmarks: range) -> None:
    """R1M: photos of nothing that is searched."""
    names = [f"{number % 3:02d}/{number:06d}.jpg" for number in landmarks]
    for number, name in zip(landmarks, names, strict=True):
        _save(photo(number, 0), root / "revisitop1m" / "jpg" / name)
    (root / "revisitop1m" / "revisitop1m.txt").write_text("\n".join(names) + "\n", encoding="utf-8")


def make_all(root: Path) -> Path:
    """Everything, below ``root``."""
    make_gldv1(root / "gldv1", range(96))
    make_sfm(root / "sfm", range(100, 116))
    make_revisited(root / "revisited", "roxford5k", range(200, 220))
    make_revisited(root / "revisited", "rparis6k", range(240, 248), each=2)
    make_distractors(root / "revisited", range(300, 400))
    return root


SETTINGS = {
    "model.init": "tiny",
    "model.dim": 64,
    "model.image_size": 48,
    "model.whitening": 192,
    "batch.size": 64,
    "batch.chunk": 16,
    "batch.batches_per_epoch": 8,
    "optimizer.lr": 1e-3,
    "run.steps": 24,
    "run.device": "cpu",
    "data.workers": 0,
}
"""What the recipe of GLDv1 is told to be small; everything else is the recipe's."""
