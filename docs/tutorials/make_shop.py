"""Draw the photos of a small shop: python make_shop.py [FOLDER]

FOLDER/photos/<product>/<number>.jpg   24 products, 12 photos each, one of them broken
FOLDER/new/<product>.jpg               photos that arrive later, one of them of a product the shop does not sell
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

from PIL import Image, ImageDraw, ImageEnhance, ImageFilter, ImageFont

NAMES = ["Alma", "Brisa", "Corto", "Delfi", "Ember", "Fjord", "Gusto", "Hazel", "Ivory", "Juno", "Kiwi", "Lumen"]
KINDS = ("bottle", "can", "box", "jar")
COLOURS = (
    *("#a23b3b", "#31618f", "#3f7d4e", "#d9b530", "#6d4c86", "#e07b39"),
    *("#2b2b2e", "#c65b8e", "#58b5a9", "#7a5a3a", "#9aa83a", "#23395d"),
)  # one per name


def product(name: str, kind: str, draw_from: random.Random) -> Image.Image:
    """A product on a transparent ground: its outline, its colour, a label with its name."""
    place = NAMES.index(name) if name in NAMES else 0
    body, label = COLOURS[place], COLOURS[(place + 5) % len(COLOURS)]
    image = Image.new("RGBA", (200, 200), (0, 0, 0, 0))
    pen = ImageDraw.Draw(image)
    left, top, right = {"bottle": (72, 60, 128), "can": (65, 50, 135), "box": (50, 45, 150), "jar": (58, 65, 142)}[kind]
    pen.rounded_rectangle((left, top, right, 180), 0 if kind == "box" else 12, fill=body)
    if kind == "bottle":
        pen.rectangle((92, 22, 108, 64), fill=body)
    if kind in ("jar", "can"):
        pen.rounded_rectangle((left, top - 14, right, top + 2), 5, fill="#8c8c90")
    pen.rectangle((left, 100, right, 145), fill="#f2ead8")
    for stripe in range(draw_from.randint(0, 3)):
        pen.rectangle((left, 148 + 8 * stripe, right, 151 + 8 * stripe), fill=label)
    pen.text(((left + right) / 2, 122), name, fill=label, font=ImageFont.load_default(18), anchor="mm")
    return image


def photo(thing: Image.Image, draw_from: random.Random) -> Image.Image:
    """The product on a shelf: turned, shifted, in other light, a little out of focus."""
    shade = draw_from.randint(110, 225)
    scene = Image.new("RGB", (240, 240), (shade, shade - draw_from.randint(0, 25), shade - draw_from.randint(0, 45)))
    pen = ImageDraw.Draw(scene)
    pen.rectangle((0, draw_from.randint(180, 215), 240, 240), fill=tuple(draw_from.randint(60, 130) for _ in range(3)))
    turned = thing.rotate(draw_from.uniform(-14, 14), Image.Resampling.BICUBIC)
    side = draw_from.randint(150, 215)
    turned = turned.resize((side, side), Image.Resampling.LANCZOS)
    scene.paste(turned, (draw_from.randint(0, 240 - side), draw_from.randint(0, 240 - side)), turned)
    scene = ImageEnhance.Brightness(scene).enhance(draw_from.uniform(0.7, 1.25))
    return scene.filter(ImageFilter.GaussianBlur(draw_from.uniform(0, 1.2)))


def main(folder: Path) -> None:
    """Draw everything, the same on every machine."""
    draw_from = random.Random(0)
    things = {f"{name.lower()}-{kind}": (name, kind) for number, name in enumerate(NAMES) for kind in _two(number)}
    (folder / "new").mkdir(parents=True, exist_ok=True)
    for label, (name, kind) in things.items():
        thing = product(name, kind, draw_from)
        (folder / "photos" / label).mkdir(parents=True, exist_ok=True)
        for number in range(12):
            photo(thing, draw_from).save(folder / "photos" / label / f"{number:02}.jpg", quality=88)
        if kind == "jar":
            photo(thing, draw_from).save(folder / "new" / f"{label}.jpg", quality=88)
    photo(product("Zebra", "can", draw_from), draw_from).save(folder / "new" / "unknown.jpg", quality=88)
    (folder / "photos" / "alma-bottle" / "broken.jpg").write_bytes(b"\xff\xd8 a photo that was cut off")


def _two(number: int) -> tuple[str, str]:
    return KINDS[number % 4], KINDS[(number + 1) % 4]


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "shop"))
