"""Draw a tiny data set in the layout of Stanford Online Products: python make_sop.py [FOLDER]"""

from __future__ import annotations

import random
import sys
from pathlib import Path

from PIL import Image

KINDS = ("bicycle", "chair", "mug")


def main(folder: Path) -> None:
    """Twelve products per split, four photos each: noise around a colour of the product's own."""
    draw_from, number = random.Random(0), 0
    for split, first in (("train", 1), ("test", 13)):
        lines = ["image_id class_id super_class_id path"]
        for product in range(first, first + 12):
            kind = product % len(KINDS)
            colour = [draw_from.randint(40, 215) for _ in range(3)]
            for photo in range(4):
                number += 1
                name = f"{KINDS[kind]}_final/{product:04}_{photo}.JPG"
                lines.append(f"{number} {product} {kind + 1} {name}")
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                noisy = bytes(min(255, max(0, c + draw_from.randint(-40, 40))) for _ in range(64) for c in colour)
                Image.frombytes("RGB", (8, 8), noisy).resize((80, 80)).save(folder / name)
        (folder / f"Ebay_{split}.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "sop"))
