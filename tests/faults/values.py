"""Families of trials with settings, options and arguments that nobody should give."""

from __future__ import annotations

import functools
import random
import signal
from typing import Any

import torch

from faults.conftest import World
from faults.damage import VALUES, hostile_yaml
from faults.moments import signal_after, stop_after
from faults.trials import Tally, called, command, run
from faults.verbs import fresh
from recollect.config.overrides import known_keys
from recollect.evaluation import evaluate
from recollect.losses import available, create


def hostile_recipe(world: World, draw: random.Random, tally: Tally) -> None:
    """A recipe that means harm."""
    path, text = world.folder / "hostile.yaml", hostile_yaml(draw)
    path.write_text(text)
    arguments = draw.choice(
        (
            ["recipes", str(path)],
            ["train", str(path), "--plan", "--data", str(world.images)],
            ["tune", str(path), "--plan"],
            ["eval", str(world.vectors), "--recipe", str(path)],
        )
    )
    tally.add("hostile recipe", repr(text[:80]), run(arguments, fresh(world, "hostile")))


def odd_setting(world: World, draw: random.Random, tally: Tally) -> None:
    """A setting has a value that nobody should write."""
    more = (
        "loss.options.tau1",
        "loss.options.k",
        "loss.options.x",
        "data.options.x",
        "data.options.test_share",
        "name",
    )
    key, value = draw.choice([*known_keys(), *more]), draw.choice(VALUES)
    arguments = ["train", str(world.recipe), "--plan", "--set", f"{key}={value}"]
    tally.add("odd setting", f"{key}={value[:60]}", run(arguments, fresh(world, "odd")))


_GIVEN: dict[str, tuple[str, ...]] = {
    "train": ("{recipe}", "--plan"),
    "eval": ("{run}", "--metrics-out", "m.json", "--queries-out", "q.npz"),
    "embed": ("{run}", "{images}", "--out", "odd.npz"),
    "search": ("{vectors}", "{image}"),
    "report": ("{run}", "--out", "r.html"),
    "recipes": (),
    "losses": (),
    "models": (),
    "tune": ("{recipe}", "--plan", "--out", "odd-study"),
    "index": ("i.db", "{images}", "--model", "{run}"),
    "calibrate": ("{index}", "--data", "{images}"),
    "duplicates": ("{images}", "--model", "{run}"),
    "export": ("{run}", "--onnx", "m.onnx"),
    "publish": ("{run}", "--folder", "odd-model"),
    "whiten": ("{headless}", "--data", "{many}", "--out", "odd-model"),
    "reproduce": ("losses", "--plan", "--out", "odd-study"),
    "compare": ("{recipe}", "--losses", "recall_at_k", "--plan", "--out", "odd-study"),
    "paper": ("{run}", "--out", "p.html"),
    "demo": ("--out", "odd-demo"),
    "serve": ("{index}",),
    "data verify": ("folder", "{images}"),
}
"""Arguments with which each verb works. ``demo`` and ``serve`` are stopped soon after they started."""
_PLACES = ("--out", "--page", "--to")
"""Options that are not tried: a place to write to, which the disturbances of every verb try, and the network."""


@functools.cache
def _options() -> list[tuple[str, str]]:
    """Every option of every verb that takes a value."""
    found = []
    for verb in _GIVEN:
        place = command()
        for word in verb.split():
            place = place.commands[word]
        options = [option for option in place.params if option.param_type_name == "option" and not option.is_flag]
        found += [(verb, option.opts[0]) for option in options if option.opts[0] not in _PLACES]
    return found


def odd_option(world: World, draw: random.Random, tally: Tally) -> None:
    """An option of a verb has a value that nobody should write."""
    verb, option = draw.choice(_options())
    folder = fresh(world, "odd")
    places = {"recipe": world.recipe, "run": world.finished, "images": world.images / "test", "vectors": world.vectors,
              "image": world.image, "index": world.copied(world.index, folder / "known.db"),
              "headless": world.headless, "many": world.many}  # fmt: skip
    more = ("lr=1:0", "lr=x", "x=1", "a=b=c", "cuda:9", "meta", "\x1b[31m", "1e400", "-9e99", "0.5", "2", "1000000000")
    value = draw.choice((*VALUES, *more)).replace("\0", "")
    arguments = [*verb.split(), *(word.format(**places) for word in _GIVEN[verb]), option, value]
    arm = {"demo": signal_after(1.0, signal.SIGTERM), "serve": stop_after(3.0)}.get(verb)
    ended = run(arguments, folder, arm)
    tally.add("odd option", f"{verb} {option} {value[:60]!r}", ended)


# The library --------------------------------------------------------------------------------------------------------


def odd_call(world: World, draw: random.Random, tally: Tally) -> None:
    """The library is called with tensors or numbers that nobody should give: a finite result or an error of its own."""
    rows = draw.choice((0, 1, 2, 12, 40, 40, 40))
    embeddings, labels = _tensor(draw, rows), _labels(draw, rows if draw.random() < 0.9 else rows + 1)
    calls = {
        **{name: functools.partial(_loss, name, draw) for name in available() if not available()[name].extra},
        "evaluate": functools.partial(_evaluate, draw),
    }
    name = draw.choice(sorted(calls))
    what = f"{name} of {tuple(embeddings.shape)} {embeddings.dtype}, labels {labels.dtype}"
    found, end, seconds = called(lambda: calls[name](embeddings, labels))
    tally.note("odd call", what, found, end, seconds)


_NUMBERS = (0, -1, 1, 1e-40, 1e-20, 1e18, 1e30, 1e38, float("inf"), float("nan"), 10**30, 0.5, True, "x", None, (), [5])


def _tensor(draw: random.Random, rows: int) -> torch.Tensor:
    base = torch.randn(rows, 8, generator=torch.Generator().manual_seed(draw.randrange(10**6)))
    return draw.choice(
        (
            *(base * scale for scale in (0.0, 1e-30, 1e18, 1e30, 1e38, float("inf"), float("nan"), -1.0)),
            *(base.half() * 1e4, base.double() * 1e200, base.long(), base.bool(), base.to(torch.complex64)),
            *(base.flatten(), base[None], base.to_sparse(), base.to("meta"), torch.zeros(rows, 0)),
        )
    )


def _labels(draw: random.Random, rows: int) -> torch.Tensor:
    base = torch.arange(rows) // 4
    return draw.choice(
        (base, base, base, base.float(), base * 0, torch.arange(rows), base - 5, base[None], base.to("meta"))
    )


def _loss(name: str, draw: random.Random, embeddings: torch.Tensor, labels: torch.Tensor) -> None:
    options: dict[str, Any] = {}
    if available()[name].parameters:
        options = {"num_classes": draw.choice((10, 10, 0, -1)), "dim": draw.choice((8, 8, 3))}
    elif draw.random() < 0.4:
        chosen = draw.choice(("tau1", "tau2", "k", "margin", "scale", "x"))
        options = {chosen: draw.choice(_NUMBERS)}
    loss = create(name, **options)
    if embeddings.is_floating_point() and embeddings.layout == torch.strided:
        embeddings = embeddings.detach().requires_grad_()
    value = loss(embeddings, labels)
    if value.device.type != "meta" and not torch.isfinite(value).all():
        raise ArithmeticError(f"a loss of {value}")


def _evaluate(draw: random.Random, embeddings: torch.Tensor, labels: torch.Tensor) -> None:
    if draw.random() < 0.5:
        embeddings = torch.randn(40, 8)
    ks = draw.choice(((1, 2), (1, 2), 5, (10**30,), (), (0,), (-1,), (1.5,), ("x",), None))
    evaluate(embeddings, labels, ks=ks)  # type: ignore[arg-type]
