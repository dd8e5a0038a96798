"""Benches for the paper's claims: a data set, a network and a budget suited to a laptop.

A bench fixes everything except what a claim varies. Its budget is a rule, stated on the page, because a small
budget can decide a comparison by itself: ``EqualImages`` gives every cell the same number of images, ``UntilValidation``
lets every cell train until validation stops improving. Learning rates are chosen by validation classes, cell
by cell, by a search that starts with ``rates``. To add a bench: add an entry to ``BENCHES``; ``claims.py`` says what
runs on it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from recollect.common.errors import DataError
from recollect.studies import protocol
from recollect.studies.protocol import EqualImages, UntilValidation

Budget = Literal["small", "full"]


@dataclass(frozen=True, kw_only=True)
class Bench(protocol.Bench):
    """A data set, a network and a budget."""

    title: str
    full: int
    """Images or steps of the full budget; ``budget`` is the small one."""
    batch: int
    """The batch size of claims that are not about batches."""
    batches: tuple[int, ...]
    """Those of the claims about batches."""
    folder: str | None = None
    """Name of the folder of its images; None for embedded images."""
    cost: float = 0.0
    """Measured seconds on one core for a run, for ``--plan``; at most, where validation ends a run."""

    def lasting(self, budget: Budget) -> Bench:
        """The bench with this budget."""
        if budget == "small":
            return self
        if isinstance(self.budget, EqualImages):
            return replace(self, budget=EqualImages(self.full), cost=self.cost * self.full / self.budget.images)
        longer = replace(self.budget, steps=self.full)
        return replace(self, budget=longer, cost=self.cost * self.full / self.budget.steps)

    def using(self, data: Path | None) -> Bench:
        """The bench with its images, below the user's folder.

        Raises:
            DataError: they are missing.
        """
        if self.folder is None:
            return self
        missing = [split for split in ("train", "test") if data and not (data / self.folder / split).is_dir()]
        if data is None or missing:
            where = "no --data folder was given" if data is None else f"{data / self.folder} has no {missing[0]} folder"
            raise DataError(f"{self.name} needs the folder {self.folder} with train and test folders: {where}.")
        return replace(self, settings={**self.settings, "data.root": str(data / self.folder)})


BENCHES = {
    bench.name: bench
    for bench in (
        Bench(
            name="glyphs",
            title="glyphs: characters in many typefaces, a small network from scratch, 32 px",
            recipe="glyphs",
            budget=EqualImages(12_000),
            full=240_000,
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
            budget=UntilValidation(steps=1500, images=160_000),
            full=6000,
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
            budget=EqualImages(12_000),
            full=240_000,
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
            budget=UntilValidation(steps=1500, images=160_000),
            full=6000,
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
            budget=EqualImages(5_880),
            full=101_920,
            batch=98 * 2,
            batches=(16, 64, 196, 392),
            rates=(1e-4, 3e-4),
            settings={"model.image_size": 64, "model.resize": 64, "batch.chunk": 32, "loss.options": {}},
            folder="cars196_96px",
            cost=240,
        ),
    )
}
