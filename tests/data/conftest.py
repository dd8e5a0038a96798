from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from recollect.data.image_set import ImageSet


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> ImageSet:
    """40 JPEG files of various sizes, 8 classes of 5."""
    root = tmp_path_factory.mktemp("photos")
    random = np.random.default_rng(0)
    names = [f"{number % 8}/{number:02}.jpg" for number in range(40)]
    for name in names:
        (root / name).parent.mkdir(exist_ok=True)
        width, height = random.choice([24, 30, 41]), random.choice([20, 33])
        coarse = Image.fromarray(random.integers(0, 256, (4, 4, 3), dtype=np.uint8))
        coarse.resize((int(width), int(height)), Image.Resampling.BICUBIC).save(root / name, quality=92)
    return ImageSet("photos", names, np.arange(40) % 8, list("abcdefgh"), root=root)


@pytest.fixture
def damaged(photos: ImageSet, tmp_path: Path) -> ImageSet:
    """The photos, with image 3 cut in half and image 11, of the same class, empty."""
    for name in photos.names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes((photos.root / name).read_bytes())
    (tmp_path / photos.names[3]).write_bytes((photos.root / photos.names[3]).read_bytes()[:200])
    (tmp_path / photos.names[11]).write_bytes(b"")
    return ImageSet("damaged", photos.names, photos.labels, photos.class_names, root=tmp_path)
