"""``recollect eval --recipe``: what a recipe says of a test: the network untrained, the k, the published numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from recollect.common.errors import ConfigError

if TYPE_CHECKING:
    from recollect.config.schema import Config
    from recollect.models import Embedder

REVISITED = ("roxford5k", "rparis6k", "sfm120k")


def read(name: str, needs_no_run: bool) -> Config:
    """The recipe's settings.

    Args:
        name: of the recipe.
        needs_no_run: nothing else was named to evaluate, so it must be a recipe that trains nothing.

    Raises:
        ConfigError: there is no such recipe, or it needs a trained run.
    """
    from recollect.config.overrides import resolve

    config = resolve(name)
    if needs_no_run and config.run.epochs != 0:
        raise ConfigError(
            f"{name} is a recipe for training: name the run to evaluate beside it (recollect eval RUN --recipe {name}), "
            "or choose a recipe that ends in /init."
        )
    return config


def embedder(config: Config, weights: str | None, download: bool = False) -> Embedder:
    """The recipe's network as it comes; ``weights`` instead of where its weights usually lie."""
    from recollect.training.build import make_embedder

    model = replace(config.model, weights=weights or config.model.weights, download=download or config.model.download)
    return make_embedder(model, config.run.seed)


def name_of_test(data: str, split: str, distractors: bool = False) -> str:
    """What the test is called among published numbers: ``sop/test``, ``roxford5k+revisitop1m``."""
    if data in REVISITED:
        return f"{data}+revisitop1m" if distractors else data
    return f"{data}/{split}"


def published_row(published: Any, test: str) -> dict[str, float]:
    """Published numbers of one test, metric to percent; those a recipe gives without naming a test count for any."""
    from recollect.config.overrides import published_tests

    tests = published_tests(published)
    # "test" alone means the first of several, as VehicleID's small list.
    name = next((name for name in tests if name == test or name.startswith(f"{test}_")), "")
    return {**tests.get("", {}), **tests.get(name, {})}


def published_ks(published: Any, test: str) -> str | None:
    """The k of the published r@k, as ``--ks`` takes them; None when there are none."""
    ks = [name.removeprefix("r@") for name in published_row(published, test) if name.startswith("r@")]
    return ",".join(ks) or None
