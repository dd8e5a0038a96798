"""Benches for the paper's claims: a data set, a network and a budget suited to a laptop.

A bench fixes everything except what a claim varies. Its budget is a rule, stated on the page, because a small
budget can decide a comparison by itself: ``EqualImages`` gives every cell the same number of images, ``UntilValidation``
lets every cell train until validation stops improving. Learning rates are chosen by validation classes, cell
by cell, by a search that starts with ``rates``. To add a bench: add an entry to ``BENCHES``; ``claims.py`` says what
runs on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from recollect.common.errors import DataError

Budget = Literal["small", "full"]


@dataclass(frozen=True)
class EqualImages:
    """Every cell sees the same number of training images, for any batch size; the learning rate follows a cosine.

    A run is a single epoch, so ``optimizer.warm_up`` is a share of the whole: 0.1 is its first tenth.
    """

    small: int
    full: int

    def settings(self, budget: Budget, batch: int, *, searching: bool, steps: int | None) -> dict[str, Any]:
        """Settings of a run of this batch size."""
        images = self.small if budget == "small" else self.full
        count = max(1, round(images / batch))
        return {"run.steps": count, "batch.batches_per_epoch": count, "optimizer.schedule": "cosine"}

    def words(self, budget: Budget) -> str:
        """The rule in a sentence."""
        images = self.small if budget == "small" else self.full
        return (
            f"equal images: every run sees {images:,} training images, so a large batch takes few steps. Between batch "
            "sizes it compares cost, not what they come to after convergence"
        )


@dataclass(frozen=True)
class UntilValidation:
    """Every cell trains as long as its validation classes improve, up to a limit; the learning rate is constant."""

    small: int
    full: int
    most_images: int
    evaluations: int = 10

    def settings(self, budget: Budget, batch: int, *, searching: bool, steps: int | None) -> dict[str, Any]:
        """Settings of a run: up to the limit while searching, ``steps`` once the search has found how many."""
        limit = min(self.small if budget == "small" else self.full, self.most_images // batch)
        every = max(1, limit // self.evaluations)
        count = every * min(limit, self.evaluations) if searching or steps is None else steps
        return {
            "run.steps": count,
            "batch.batches_per_epoch": every if searching else count,
            "optimizer.schedule": "constant",
        }

    def words(self, budget: Budget) -> str:
        """The rule in a sentence."""
        limit = self.small if budget == "small" else self.full
        return (
            f"until validation stops improving: the search takes at most {limit:,} steps or {self.most_images:,} images and "
            f"evaluates validation classes {min(limit, self.evaluations)} times; the best evaluation gives the number of steps"
        )


@dataclass(frozen=True)
class Bench:
    """A data set, a network and a budget."""

    name: str
    title: str
    recipe: str
    budget: EqualImages | UntilValidation
    batch: int
    """The batch size of claims that are not about batches."""
    batches: tuple[int, ...]
    """Those of the claims about batches."""
    rates: tuple[float, ...]
    """Initial learning rates of each cell's search, neighbours on ``matrix.LADDER``."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    folder: str | None = None
    """Name of the folder of its images; None for embedded images."""
    cost: float = 0.0
    """Measured seconds on one core for a run of the small budget, for ``--plan``."""

    def seconds(self, budget: Budget) -> float:
        """Maximum seconds on one core for a run of this budget."""
        return self.cost * (1.0 if budget == "small" else self.budget.full / self.budget.small)

    def settings_with(self, data: Path | None) -> dict[str, Any]:
        """Its settings, with the folder of its images if the user gave one."""
        root = self.root(data)
        return {**self.settings, **({} if root is None else {"data.root": root})}

    def root(self, data: Path | None) -> str | None:
        """The folder of its images below the user's folder; None if none are needed.

        Raises:
            DataError: they are needed but missing.
        """
        if self.folder is None:
            return None
        missing = [split for split in ("train", "test") if data and not (data / self.folder / split).is_dir()]
        if data is None or missing:
            where = "no --data folder was given" if data is None else f"{data / self.folder} has no {missing[0]} folder"
            raise DataError(f"{self.name} needs the folder {self.folder} with train and test folders: {where}.")
        return str(data / self.folder)


BENCHES = {
    bench.name: bench
    for bench in (
        Bench(
            name="glyphs",
            title="glyphs: characters in many typefaces, a small network from scratch, 32 px",
            recipe="glyphs",
            budget=EqualImages(small=12_000, full=240_000),
            batch=200,
            batches=(16, 200, 800),
            rates=(1e-3, 3e-3),
            settings={"optimizer.warm_up": 0.1},
            cost=45,
        ),
        Bench(
            name="cars196-head",
            title="Cars196 (96 px, enlarged to 224): ImageNet features of EfficientNet-Lite0, only the last layer trained",
            recipe="cars196-96px",
            budget=UntilValidation(small=1500, full=6000, most_images=160_000),
            batch=392,
            batches=(16, 64, 392),
            rates=(3e-5, 1e-4),
            settings={
                "model.freeze": "pooling",
                # The network's own resolution: the same photos at 96 px start at r@1 23.3.
                "model.image_size": 224,
                "model.resize": 224,
                "data.cache": "none",
                "loss.options": {},
            },
            folder="cars196_96px",
            cost=30,
        ),
        Bench(
            name="omniglot",
            title="Omniglot: handwritten characters, a small network from scratch, 32 px",
            recipe="glyphs",
            budget=EqualImages(small=12_000, full=240_000),
            batch=200,
            batches=(16, 200, 800),
            rates=(1e-3, 3e-3),
            settings={
                "optimizer.warm_up": 0.1,
                "data.name": "folder",
                "data.augmentation": "glyph",
                "data.cache": "ram",
                "model.resize": 32,
            },
            folder="omniglot",
            cost=60,
        ),
        Bench(
            name="omniglot-head",
            title="Omniglot at 64 px: ImageNet features of EfficientNet-Lite0, only the last layer trained",
            recipe="cars196-96px",
            budget=UntilValidation(small=1500, full=6000, most_images=160_000),
            batch=256,
            batches=(16, 256, 2048),
            rates=(1e-4, 3e-4),
            settings={
                "model.freeze": "pooling",
                "model.image_size": 64,
                "model.resize": 64,
                "data.cache": "none",
                "loss.options": {},
            },
            folder="omniglot",
            cost=40,
        ),
        Bench(
            name="cars196",
            title="Cars196 at 64 px: the whole of EfficientNet-Lite0 trained",
            recipe="cars196-96px",
            budget=EqualImages(small=5_880, full=101_920),
            batch=98 * 2,
            batches=(16, 64, 196, 392),
            rates=(1e-4, 3e-4),
            settings={"model.image_size": 64, "model.resize": 64, "batch.chunk": 32, "loss.options": {}},
            folder="cars196_96px",
            cost=240,
        ),
    )
}
