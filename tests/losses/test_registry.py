from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

from recollect.common.errors import ConfigError
from recollect.losses import available, create
from recollect.losses.registry import _parameters, describe

NAMES = [
    "recall_at_k",
    "smooth_ap",
    "sup_ap",
    "roadmap",
    "hierarchical_ap",
    "blackbox_ap",
    "binned_ap",
    "fast_ap",
    "contrastive",
    "multi_similarity",
    "supcon",
    "triplet",
    "margin",
    "norm_softmax",
    "proxy_nca",
    "proxy_anchor",
    "arcface",
    "cosface",
    "cross_batch_memory",
]


def need(name: str) -> None:
    """Skip where the extra a loss needs is not there."""
    if available()[name].extra is not None:
        pytest.importorskip("pytorch_metric_learning")


def required(name: str) -> dict[str, Any]:
    values = {"num_classes": 4, "dim": 8, "coarse": [0, 0, 1, 1]}
    return {option.name: values[option.name] for option in describe(name).options if option.required}


def test_every_loss_is_there() -> None:
    assert list(available()) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_every_loss_can_be_made_and_called(name: str) -> None:
    need(name)
    entry = available()[name]
    loss = create(name, **required(name))
    assert isinstance(loss, nn.Module)
    assert bool(list(loss.parameters())) == entry.parameters
    E = nn.functional.normalize(torch.randn(16, 8), dim=1).requires_grad_()
    y = torch.arange(16) // 4
    value = loss(E, y)
    value.backward()
    assert value.shape == ()
    assert value > 0
    assert E.grad is not None
    assert E.grad.any()
    if entry.references:
        assert loss(E, y, E.detach().clone(), y).isfinite()
    else:
        with pytest.raises(ValueError, match="no separate reference set"):
            loss(E, y, E.detach().clone(), y)


@pytest.mark.parametrize("name", NAMES)
def test_every_loss_tells_about_itself(name: str) -> None:
    need(name)
    description = describe(name)
    assert len(description.summary) > 40
    assert "Args:" not in description.summary
    assert len(available()[name].description) < 60
    for option in description.options:
        assert option.type


def test_defaults_are_told() -> None:
    options = {option.name: option.default for option in describe("binned_ap").options}
    assert list(options)[:3] == ["bins", "low", "high"]
    assert options["bins"] == 25
    assert options["memory"] == 512 * 2**20


@pytest.mark.parametrize(
    ("name", "option", "largest", "beyond"),
    [
        ("binned_ap", "high", 1e6, 1.5e6),
        ("sup_ap", "rho", 1e6, 1.5e6),
        ("recall_at_k", "positive_margin", 1e6, 1.5e6),
        ("recall_at_k", "max_pairs", 10**9, 10**9 + 1),
        ("margin", "num_classes", 1, 0),
        ("norm_softmax", "num_classes", 1000, 10**8 + 1),
        ("cross_batch_memory", "dim", 1000, 10**6 + 1),
    ],
)
def test_an_option_may_have_its_largest_value_and_no_more(
    name: str, option: str, largest: float, beyond: float
) -> None:
    need(name)
    create(name, **{**required(name), option: largest})
    with pytest.raises(ConfigError, match=f"{option} must be"):
        create(name, **{**required(name), option: beyond})


@dataclass
class Shared:
    size: int = 3
    depth: int = 1


class Made:
    options_type = Shared

    def __init__(self, depth: int = 2, **options: int) -> None: ...


def test_shared_options() -> None:
    found = _parameters(Made)
    assert list(found) == ["depth", "size"]
    assert found["depth"].default == 2
    assert list(_parameters(create)) == ["name"]


def test_options_handed_on_are_options_too() -> None:
    need("roadmap")
    for name in ("recall_at_k", "smooth_ap", "sup_ap", "roadmap"):
        options = {option.name for option in describe(name).options}
        assert {"simix", "memory", "generator"} <= options
        assert not {"options", "rank_limit"} & options
    assert "calibration_weight" in {option.name for option in describe("roadmap").options}
    assert "rho" in {option.name for option in describe("roadmap").options}
    create("roadmap", rho=50.0, memory=2**20)
    with pytest.raises(ConfigError, match="no option 'rank_limit'"):
        create("recall_at_k", rank_limit=3)


@pytest.mark.parametrize(("wrong", "right"), [("proxy_ancor", "proxy_anchor"), ("Binned-AP", "binned_ap")])
def test_unknown_name(wrong: str, right: str) -> None:
    with pytest.raises(ConfigError, match=rf"'{re.escape(wrong)}' is unknown.*mean {right}") as caught:
        create(wrong)
    assert "cross_batch_memory" in str(caught.value)


def test_unknown_option() -> None:
    with pytest.raises(ConfigError, match=r"'bin'.*mean bins\?.* bins, low"):
        create("binned_ap", bin=3)


def test_required_options() -> None:
    with pytest.raises(ConfigError, match=r"'arcface' needs .*num_classes and dim"):
        create("arcface")
    with pytest.raises(ConfigError, match=r"needs the option dim\."):
        create("arcface", num_classes=3)
