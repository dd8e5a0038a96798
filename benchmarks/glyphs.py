"""How long ``glyphs`` takes to make, how large it is, and what raw pixels find in it.

    python -m benchmarks.glyphs                    all fonts found
    python -m benchmarks.glyphs --matplotlib-only  as without the extra

r@1: every image of the test characters is a query, all others the database, by the cosine of their ink (255 − grey).
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch

from recollect.common.files import write_json
from recollect.data import ImageSet
from recollect.data.sources.glyphs import make_glyphs, on_side
from recollect.data.sources.glyphs.typefaces import find_faces


def raw_pixel_recall(images: ImageSet, block: int = 1000) -> float:
    assert images.arrays is not None
    vectors = torch.nn.functional.normalize(255 - torch.from_numpy(images.arrays).flatten(1).float())
    labels, hits = torch.from_numpy(images.labels), 0
    for start in range(0, len(vectors), block):
        similarity = vectors[start : start + block] @ vectors.T
        rows = torch.arange(len(similarity))
        similarity[rows, rows + start] = -2  # the query itself
        hits += int((labels[similarity.argmax(1)] == labels[start : start + block]).sum())
    return hits / len(vectors)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--matplotlib-only", action="store_true")
    arguments = parser.parse_args()
    faces = find_faces()
    if arguments.matplotlib_only:
        faces = [face for face in faces if "matplotlib" in face.path.parts]
    wall, processor = time.perf_counter(), time.process_time()
    glyphs = make_glyphs(faces)
    wall, processor = time.perf_counter() - wall, time.process_time() - processor
    images = ImageSet("glyphs", glyphs.names, glyphs.labels, glyphs.class_names, arrays=glyphs.pixels)
    train, test = on_side(images, "train"), on_side(images, "test")
    result = {
        "faces": len(faces),
        "characters": images.num_classes,
        "images": len(images),
        "train": [train.num_classes, len(train)],
        "test": [test.num_classes, len(test)],
        "seconds": round(wall, 1),
        "processor_seconds": round(processor, 1),
        "raw_pixel_r@1": round(100 * raw_pixel_recall(test), 2),
    }
    for key, value in result.items():
        print(f"{key:<18} {value}")
    write_json(Path("benchmarks/results/glyphs.json"), result)


if __name__ == "__main__":
    main()
