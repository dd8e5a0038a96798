"""One of two processes whose first takes longer over its whitening than the others' collectives wait.

Run through torchrun with a configuration, a folder, the collectives' timeout and the first's time, both in seconds.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import torch

from recollect.config.overrides import resolve
from recollect.inference import whitening_sets
from recollect.step.team import start, stop
from recollect.training import last_layer as whitening
from recollect.training.build import build


def meet(folder: Path) -> None:
    """Without a collective: what comes before is not what is timed here."""
    (folder / f"here-{team.rank}").touch()
    while len(list(folder.glob("here-*"))) < team.size:
        time.sleep(0.02)


if __name__ == "__main__":
    torch.set_num_threads(1)
    folder, timeout, delay = Path(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4])
    team = start(timeout_minutes=timeout / 60)
    training = build(resolve(sys.argv[1]), torch.device("cpu"), team)
    features = whitening_sets.head_inputs

    def slowly(*arguments: Any, **options: Any) -> torch.Tensor:
        time.sleep(delay)
        return features(*arguments, **options)

    whitening_sets.head_inputs = slowly
    meet(folder)
    begun = time.monotonic()
    chosen = whitening.whitening_images(training.config, training.sets.train)
    assert chosen is not None
    whitening.whiten_last_layer(training, chosen)
    linear = training.network.embedder.head.linear
    assert linear is not None
    found = {"seconds": time.monotonic() - begun, "weight": linear.weight.detach()}
    torch.save(found, folder / f"found-{team.rank}.pt")
    training.close()
    stop()
