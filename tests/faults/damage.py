"""Ways to damage a file, and texts and values nobody should write, all drawn from a seed."""

from __future__ import annotations

import io
import json
import os
import random
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

Damage = Callable[[random.Random, Path], None]


def _write(content: bytes) -> Damage:
    return lambda draw, path: _replace(path, lambda: path.write_bytes(content))


def _replace(path: Path, make: Callable[[], object]) -> None:
    path.unlink(missing_ok=True)
    make()


def _flip(draw: random.Random, path: Path) -> None:
    content = bytearray(path.read_bytes() or b"x")
    content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    path.write_bytes(content)


def _cut(draw: random.Random, path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: draw.randrange(max(1, len(content)))])


def _cut_at_a_line(draw: random.Random, path: Path) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[: draw.randrange(max(1, len(lines)))]))


def _noise(draw: random.Random, path: Path) -> None:
    path.write_bytes(draw.randbytes(draw.choice((1, 30, 5000))))


def _swap_a_value(draw: random.Random, path: Path) -> None:
    """Another type where a value stands, in a text of keys and values."""
    lines = path.read_text(errors="replace").splitlines() or ["a: 1"]
    place = draw.randrange(len(lines))
    key, colon, _ = lines[place].partition(":")
    if colon:
        lines[place] = f"{key}: {draw.choice(VALUES)}" + ("," if path.suffix == ".json" else "")
    path.write_text("\n".join(lines) + "\n")


def _swap_in_a_json_line(draw: random.Random, path: Path) -> None:
    lines = path.read_text(errors="replace").splitlines() or ["{}"]
    place = draw.randrange(len(lines))
    try:
        record = json.loads(lines[place])
    except ValueError:
        record = {}
    if isinstance(record, dict) and record:
        record[draw.choice(sorted(record))] = draw.choice((None, "x", [], {}, -1, 1e308, True, 10**30))
    lines[place] = json.dumps(draw.choice((record, [], 3, None)))
    path.write_text("\n".join(lines) + "\n")


def _append(draw: random.Random, path: Path) -> None:
    with path.open("ab") as file:
        file.write(draw.choice((b"{", b"\xff\xfe", b"x" * 1000, b"\0" * 100, b'{"kind": "st')))


def _bomb(draw: random.Random, path: Path) -> None:
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (%d, 64), }\n" % draw.choice((10**6, 10**12, 2**62))
    array = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header
    names = draw.choice((["embeddings.npy"], ["embeddings.npy", "labels.npy", "facts.npy", "settings.npy"]))
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in names:
            archive.writestr(name, array + b"\0" * draw.choice((0, 100, 10**6)))


def _arrays(draw: random.Random, path: Path) -> None:
    """A sound archive of other arrays than a reader expects."""
    shapes: list[object] = [
        *(np.zeros(0), np.zeros((0, 4)), np.zeros((3, 4)), np.full((3, 4), np.nan), np.array("x"), np.arange(3)),
        *(np.zeros((3, 4), complex), np.zeros(3, "M8[s]"), np.array(["a", "b", "c"])),
    ]
    kept = io.BytesIO()
    keys = (
        "embeddings",
        "labels",
        "names",
        "source",
        "facts",
        "settings",
        "positives",
        "class_names",
        "vectors_chosen",
    )
    np.savez(kept, **{name: draw.choice(shapes) for name in draw.sample(keys, 5)})  # type: ignore[arg-type]
    path.write_bytes(kept.getvalue())


def _loop(draw: random.Random, path: Path) -> None:
    _replace(path, lambda: path.symlink_to(path.name))


ANY: dict[str, Damage] = {
    "flip": _flip,
    "cut": _cut,
    "noise": _noise,
    "append": _append,
    "empty": _write(b""),
    "pipe": lambda draw, path: _replace(path, lambda: os.mkfifo(path)),
    "folder": lambda draw, path: _replace(path, path.mkdir),
    "loop": _loop,
    "gone": lambda draw, path: path.unlink(),
    "huge": lambda draw, path: os.truncate(path, 10**11),
}
TEXT: dict[str, Damage] = {
    "line": _cut_at_a_line,
    "value": _swap_a_value,
    "utf-16": lambda draw, path: _swap(path),
    "list": _write(b"[]"),
    "null": _write(b"null\n"),
    "deep": _write(b"[" * 100_000),
    "digits": _write(b"1" * 6000),
}
LINES: dict[str, Damage] = {
    "record": _swap_in_a_json_line,
    "line": _cut_at_a_line,
    "utf-16": lambda draw, path: _swap(path),
}
ARRAYS: dict[str, Damage] = {"bomb": _bomb, "arrays": _arrays}


def _swap(path: Path) -> None:
    path.write_bytes(path.read_text(errors="replace").encode("utf-16"))


def ways(path: Path) -> dict[str, Damage]:
    """The ways to damage a file of this kind."""
    more = {".json": TEXT, ".yaml": TEXT, ".jsonl": LINES, ".npz": ARRAYS}.get(path.suffix, {})
    return ANY | more


VALUES = (
    "null", "true", "[]", "{}", "x", "''", "-1", "0", "1", "3.5", "1e-9", "1e30", "-1e30", ".nan", ".inf", "-.inf",
    "9223372036854775808", "100000000000000000000000000000", "0x_", "0b_", "2020-13-45", "2020-01-31", "!!int x",
    "!!bool y", "!!python/object/apply:os.getcwd []", "[1, 2, 3]", "[a]", "{a: 1}", "&a [*a]", "*a", "[[[[[[1]]]]]]",
    "'\\0'", '"\\e[31m"', "'\u202e'", "99999999999", "1_000", "1:30", "~", "=", "<<", "../../x", "/dev/null", "a b",
    "['x', 1]", "4.0", "-0.0", "1" * 5000, "0x" + "f" * 5000, "[" * 3000,
)  # fmt: skip
"""What a person, a script or a fuzzer may write where a setting's value belongs."""


def hostile_yaml(draw: random.Random) -> str:
    """A recipe that means harm, or none at all."""
    depth = draw.randrange(3, 40)
    chain = "\n".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * draw.randrange(2, 10))}]" for n in range(1, depth))
    merge = "\n".join(f"a{n}: &a{n} {{<<: [*a{n - 1}, *a{n - 1}]}}" for n in range(1, depth))
    group = draw.choice(("data", "model", "loss", "batch", "optimizer", "run", "words", "rows", "columns", "inherits"))
    alphabet = "abc:{}[],&*!|>'\"#%@-?\n \t01.~=<"
    return draw.choice(
        (
            f"a0: &a0 [1]\n{chain}",
            f"a0: &a0 {{x: 1}}\n{merge}",
            f"{group}: &x {{{group}: *x}}",
            f"{group}: {draw.choice(VALUES)}",
            f"{group}: {{{draw.choice(('name', 'size', 'lr', 'x', '1', '[a]'))}: {draw.choice(VALUES)}}}",
            "inherits: small\nwords: {a: {}}\nrows: {a/b: [1]}\ncolumns: {x: [y]}",
            "[" * draw.choice((50, 3000)) + "]" * draw.choice((0, 50)),
            "- " * draw.choice((50, 3000)),
            "".join(draw.choice(alphabet) for _ in range(draw.randrange(1, 200))),
            f"published: {draw.choice(VALUES)}\nrows: {draw.choice(VALUES)}",
        )
    )


# Images, names and lists --------------------------------------------------------------------------------------------


def _png(width: int, height: int) -> bytes:
    """A PNG that announces a size and holds one compressed row of nothing."""
    parts = [b"\x89PNG\r\n\x1a\n"]
    for name, content in (
        (b"IHDR", width.to_bytes(4, "big") + height.to_bytes(4, "big") + b"\x08\x02\x00\x00\x00"),
        (b"IDAT", zlib.compress(bytes(10**6), 9)),
        (b"IEND", b""),
    ):
        parts += [len(content).to_bytes(4, "big"), name, content, zlib.crc32(name + content).to_bytes(4, "big")]
    return b"".join(parts)


def hostile_image(draw: random.Random, path: Path) -> str:
    """Put something hostile in the place of an image; returns what."""
    shapes = [(20_000, 1), (1, 60_000), (60_000, 60_000), (2**31 - 1, 1), (0, 0), (100_000, 1)]
    kind = draw.choice(("damage", "size", "thin", "palette", "text", "svg", "mode", "animation"))
    if kind == "damage":
        name, way = draw.choice(sorted(ANY.items()))
        way(draw, path)
        return f"{kind} by {name}"
    path.unlink()
    if kind == "size":
        path.write_bytes(_png(*draw.choice(shapes)))
    elif kind == "thin":
        Image.new("RGB", draw.choice(shapes[:2])).save(path)
    elif kind == "palette":
        Image.new("P", (24, 24)).save(path, transparency=0)
    elif kind == "mode":
        Image.new(draw.choice(("1", "L", "LA", "I;16", "RGBA")), (24, 24)).save(path)
    elif kind == "animation":
        frames = [Image.new("L", (24, 24), shade) for shade in range(0, 250, 50)]
        frames[0].save(path, "GIF", save_all=True, append_images=frames)
    else:
        path.write_bytes(b"<svg xmlns='http://www.w3.org/2000/svg'/>" if kind == "svg" else b"not an image\n" * 99)
    return kind


def hostile_name(draw: random.Random) -> bytes | None:
    """A file's name that a terminal or a page should not meet raw; None to leave it."""
    names = (b"\x1b[31mred\x1b]0;t\x07.png", b"\xff\xfe.png", b"-rf.png", b"<script>alert(1).png", b"a\nb.png",
             "\u202egnp.exe.png".encode(), b"%s%n{}.png", b" .png", b"x" * 250 + b".png", b"a,b\"c';--.png")  # fmt: skip
    return draw.choice((None, *names))


def hostile_list(draw: random.Random, suffix: str) -> bytes:
    """A list of image paths, or a table of them, that means harm."""
    lines = [
        b"../../../etc/passwd", b"/etc/passwd", b"test-01/3.png", b"test-01/\x00.png", b"\xff\xfe.png", b"nowhere.png",
        b"test-01", b"\x1b[31m.png", b"", b"a" * 5000, b"test-01/3.png/x", b"~/x.png", b"\"unclosed",
    ]  # fmt: skip
    chosen = [draw.choice(lines) for _ in range(draw.randrange(1, 8))]
    if suffix == ".txt":
        return b"\n".join(chosen)
    head = draw.choice((b"path,label", b"path,label,split", b"label,path", b"path", b"", b"path,path", b"\xff,label"))
    ends = (b",a", b",b", b",a,test", b",", b"", b",a,b,c", b",\x1b[31m", b",1e999")
    return b"\n".join([head, *(line + draw.choice(ends) for line in chosen)])
