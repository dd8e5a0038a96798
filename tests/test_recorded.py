"""What must not change by accident: commands and options, public names, recipes, metrics and vectors, as recorded.

After a change on purpose, write the files again with ``RECORD=1 python -m pytest tests/test_recorded.py`` and read the
difference.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import typer.main

import recollect
from recollect.config.schema import Config
from recollect.evaluation import evaluate, evaluate_reid, evaluate_revisited

FOLDER = Path(__file__).parent / "recorded"


def _check(name: str, now: Any) -> None:
    path = FOLDER / f"{name}.json"
    text = json.dumps(now, indent=1, sort_keys=True, ensure_ascii=False)
    if os.environ.get("RECORD"):
        path.write_text(f"{text}\n", encoding="utf-8")
    recorded = json.loads(path.read_text(encoding="utf-8"))
    assert _rounded(json.loads(text)) == _rounded(recorded)


def _rounded(value: Any) -> Any:
    """Numbers by six digits, so that another processor gives the same."""
    if isinstance(value, dict):
        return {key: _rounded(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_rounded(inner) for inner in value]
    return pytest.approx(value, rel=1e-6, abs=1e-6) if isinstance(value, float) else value


def test_commands_and_their_options() -> None:
    from recollect.cli.main import app

    group = typer.main.get_command(app)
    verbs = {}
    for name in sorted(group.commands):  # type: ignore[attr-defined]
        command = group.get_command(None, name)  # type: ignore[attr-defined]
        options = {}
        for option in command.params:
            default = option.default if isinstance(option.default, bool | int | float | str | None) else None
            label = max(option.opts, key=len)
            options[label] = {"default": default or None}
            if label.startswith("-"):  # the help of arguments is elsewhere in earlier versions of typer
                options[label]["help"] = getattr(option, "help", None)
        verbs[name] = {"help": command.help, "options": options}
    _check("commands", verbs)


def test_public_names() -> None:
    _check("names", sorted(recollect.__all__))


def test_recipes_resolve_to_the_same_settings() -> None:
    usual = _flat(asdict(Config()))
    recipes = {}
    for name in sorted(recipe.name for recipe in recollect.find_recipes()):
        flat = _flat(asdict(recollect.resolve(name)))
        recipes[name] = {key: value for key, value in flat.items() if value != usual.get(key)}
    _check("recipes", recipes)


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return json.loads(json.dumps(flat))


def test_metrics_of_every_protocol() -> None:
    draws = np.random.default_rng(0)
    labels = np.repeat(np.arange(40), 6)
    vectors = (draws.normal(size=(40, 32))[labels] + 2.2 * draws.normal(size=(240, 32))).astype(np.float32)
    lists = [draws.permutation(200) for _ in range(40)]
    truth = [{"easy": p[:5], "hard": p[5:9], "junk": p[9:12]} for p in lists]
    cosine = {"similarity": "cosine"}
    _check(
        "metrics",
        {
            "classes": evaluate(vectors, labels, ks=[1, 2, 4, 10], **cosine).metrics,
            "hierarchy": evaluate(vectors, labels, coarse_labels=labels // 4, **cosine).metrics,
            "gallery": evaluate(vectors[:60], labels[:60], vectors[30:], labels[30:], ks=[1, 5], **cosine).metrics,
            "reid": evaluate_reid(vectors, labels, seeds=3, **cosine).metrics,
            "revisited": evaluate_revisited(vectors[:40], vectors[40:], truth, **cosine).metrics,
        },
    )


def test_vectors_of_photos() -> None:
    embedder = recollect.Embedder.create("lite0-in1k", dim=None).eval()
    draws = torch.Generator().manual_seed(0)
    small = torch.rand(3, 3, 7, 7, generator=draws)
    pixels = (torch.nn.functional.interpolate(small, size=(224, 224), mode="bicubic").clamp(0, 1) * 255).byte()
    with torch.inference_mode():
        vectors = embedder(pixels)
    recorded = FOLDER / "vectors.npy"
    if os.environ.get("RECORD"):
        np.save(recorded, vectors.numpy())
    np.testing.assert_allclose(vectors.numpy(), np.load(recorded), atol=2e-5)
