"""The paper's tables, and what the settings of its recipes should be, written down apart from the recipes."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

from experiments import published
from recollect.models.zoo import ZOO

HERE = Path(published.__file__).parent

# data set → the columns of a table, in the order of the tests and metrics they belong to
COLUMNS = {
    "inaturalist": {"inaturalist/test": {f"r@{k}": f"inat_r{k}" for k in (1, 4, 16, 32)}},
    "sop": {"sop/test": {f"r@{k}": f"sop_r{k}" for k in (1, 10, 100, 1000)}},
    "vehicleid": {
        f"vehicleid/test_{size}": {f"r@{k}": f"vid_{size}_r{k}" for k in (1, 5)}
        for size in ("small", "medium", "large")
    },
    "cars196": {"cars196/test": {f"r@{k}": f"cars_r{k}" for k in (1, 2, 4, 8)}},
}

INITIALISATIONS = {(row.paper_row.upper(), row.architecture): name for name, row in ZOO.items() if row.paper_row}
METHODS = {
    "SAP (authors)": "sap",
    "SAP (authors) +GeM +LN": "sap",
    "RS@k (authors)": "rsk",
    "RS@k (authors) +SiMix": "rsk-simix",
    "SAP": "sap",
    "RS@k": "rsk",
    "RS@k+SiMix": "rsk-simix",
    "init": "init",
}
ARCHITECTURES = {
    "R50 d=128": "r50-128",
    "R50 d=512": "r50-512",
    "ViT-B/32 d=512": "vit-b32-in21k",
    "ViT-B/16 d=512": "vit-b16-in21k",
}

# optimizer, learning rate, milestones, epochs, batch, chunk
SETTINGS = {
    ("inaturalist", "r50"): ("adam", 1e-4, (40, 70), 90, 4000, 200),
    ("inaturalist", "vit-b32"): ("adamw", 5e-5, (10, 40, 70), 90, 4000, 200),
    ("inaturalist", "vit-b16"): ("adamw", 5e-5, (10, 40, 70), 90, 4000, 100),
    ("sop", "r50"): ("adam", 2e-4, (25, 50), 55, 4000, 200),
    ("sop", "vit-b32"): ("adamw", 5e-5, (25, 50), 55, 4000, 200),
    ("sop", "vit-b16"): ("adamw", 5e-5, (25, 50), 55, 4000, 100),
    ("vehicleid", "r50"): ("adam", 1e-4, (40, 70), 90, 4000, 200),
    ("vehicleid", "vit-b32"): ("adamw", 1e-4, (40, 70), 90, 4000, 200),
    ("vehicleid", "vit-b16"): ("adamw", 5e-5, (40, 70), 90, 4000, 100),
    ("cars196", "r50"): ("adam", 1e-4, (80, 140), 170, 392, 98),
    ("cars196", "vit-b32"): ("adamw", 3e-5, (20, 30, 40), 50, 392, 98),
    ("cars196", "vit-b16"): ("adamw", 1e-5, (20, 30, 40), 50, 392, 98),
}
PUBLISHED_FOR = {"r50-128": "r50", "r50-512": "r50", "vit-b32-in21k": "vit-b32", "vit-b16-in21k": "vit-b16"}
"""Networks whose settings were published; all others start from those of vit-b16."""


def read(table: str) -> list[dict[str, str]]:
    with (HERE / f"{table}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def expected_numbers() -> dict[str, dict[str, dict[str, float]]]:
    """Every row that the authors trained or measured: the recipe's name → test → metric → percent."""
    found: dict[str, dict[str, dict[str, float]]] = {}

    def add(name: str, row: dict[str, str], tests: dict[str, dict[str, str]]) -> None:
        numbers = {t: {metric: float(row[c]) for metric, c in metrics.items()} for t, metrics in tests.items()}
        assert found.setdefault(name, numbers) == numbers, f"the paper's tables disagree about {name}"

    for row in read("methods"):
        if row["method"].removesuffix(" +SiMix").removesuffix(" +GeM +LN").endswith("(authors)"):
            for data, tests in COLUMNS.items():
                add(f"{data}/{ARCHITECTURES[row['arch']]}/{METHODS[row['method']]}", row, tests)
    for row in read("initialization"):
        for data in ("inaturalist", "sop", "cars196"):
            model = INITIALISATIONS[row["init"].upper(), row["arch"]]
            add(f"{data}/{model}/{METHODS[row['method']]}", row, COLUMNS[data])
    setups = {"medium/map": "medium", "hard/map": "hard"}
    for row in read("instance_search"):
        if row["arch"] == "GeM":
            tests: dict[str, dict[str, str]] = {}
            for test, column in (("roxford5k", "rox"), ("rparis6k", "rpar")):
                tests[test] = {metric: f"{column}_{setup}" for metric, setup in setups.items()}
                tests[f"{test}+revisitop1m"] = {m: f"{column}_r1m_{setup}" for m, setup in setups.items()}
            tests["mean"] = {"all": "mean_all", "with revisitop1m": "mean_r1m"}
            add(f"gldv1/r101/{METHODS[row['loss']]}", row, tests)
    return found


def expected_settings(name: str) -> dict[str, Any]:
    """What a recipe of the four benchmarks should say."""
    data, model, method = name.split("/")
    optimizer, lr, milestones, epochs, batch, chunk = SETTINGS[data, PUBLISHED_FOR.get(model, "vit-b16")]
    large = "-l1" in model
    settings = {
        "data.name": data,
        "data.crop_scale": (0.08, 1.0),
        "data.flip": True,
        "model.init": "r50-in1k" if model.startswith("r50") else model,
        "model.dim": {"r50-128": 128}.get(model, 512),
        "model.image_size": 224,
        "model.resize": 256,
        "model.layer_norm": model.startswith("r50"),
        "model.pooling": "gem" if model.startswith("r50") else "cls",
        "model.batch_norm": "frozen",
        "batch.size": 384 if method == "sap" else batch,
        "batch.samples_per_class": 4,
        "batch.chunk": "auto" if large else chunk,
        "batch.small_classes": "drop",
        "optimizer.name": optimizer,
        "optimizer.lr": lr,
        "optimizer.weight_decay": 4e-4,
        "optimizer.milestones": milestones,
        "optimizer.gamma": 0.3,
        "optimizer.head_multiplier": 1.0,
        "optimizer.warm_up": 0.0,
        "run.epochs": epochs,
    }
    losses: dict[str, tuple[str, dict[str, Any]]] = {
        "sap": ("smooth_ap", {"tau": 0.01}),
        "rsk": ("recall_at_k", {"k": [1, 2, 4, 8, 16], "tau1": 1.0, "tau2": 0.01}),
        "rsk-simix": (
            "recall_at_k",
            {"k": [1, 2, 4, 8, 12, 16, 20, 24, 28, 32], "tau1": 1.0, "tau2": 0.01, "simix": True},
        ),
    }
    if method == "init":
        return {
            **{key: value for key, value in settings.items() if key.startswith(("data", "model"))},
            "model.dim": None,
            "run.epochs": 0,
        }
    return {**settings, "loss.name": losses[method][0], "loss.options": losses[method][1]}
