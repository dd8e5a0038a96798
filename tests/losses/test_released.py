"""The losses as their authors released them: values and gradients computed with that code, in float64."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from recollect.losses import RecallAtK, Roadmap, SmoothAP, SupAP
from recollect.losses.engine.simix import Mixing
from recollect.losses.rank_loss import TiledLoss

CASES = json.loads((Path(__file__).parent / "released_cases.json").read_text())["cases"]
NAMES = list(CASES[0]["losses"])
STEP = ("tau", "rho", "delta", "start", "offset")


def released(name: str, options: dict[str, Any], images: int) -> TiledLoss:
    """Our loss with the options that make it the released one."""
    step = {option: value for option, value in options.items() if option in STEP}
    if name.startswith("rsk"):
        loss = RecallAtK(options["k"], options["tau1"], options["tau2"], count_query=True, simix="simix" in name)
        if pairs := options.get("mixing_first_second_alpha"):
            first, second, alpha = (torch.tensor(values, dtype=torch.float64) for values in zip(*pairs, strict=True))
            own = torch.arange(images)
            weights = torch.cat([torch.ones(images, dtype=torch.float64), alpha])
            mixing = Mixing(torch.cat([own, first.long()]), torch.cat([own, second.long()]), weights)
            loss._mix = lambda *_: (mixing, mixing)  # type: ignore[method-assign]
        return loss
    if name.startswith("smooth_ap"):
        return SmoothAP(count_query=True, **step)
    if name.startswith("sup_ap"):
        return SupAP(count_query=True, **step)
    return Roadmap(1.0, options["positive_margin"], options["negative_margin"], calibrate="violating", count_query=True)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("case", range(len(CASES)))
def test_values_and_gradients_of_released_code(name: str, case: int) -> None:
    embeddings = torch.tensor(CASES[case]["embeddings"], dtype=torch.float64).requires_grad_()
    labels = torch.tensor(CASES[case]["labels"])
    expected = CASES[case]["losses"][name]
    # The released calibration normalizes what it is given; ours takes embeddings as they are, here of length 1 already.
    inputs = normalize(embeddings, dim=1) if name.startswith("calibration") else embeddings
    value = released(name, expected["options"], len(labels))(inputs, labels)
    value.backward()
    gradient: Tensor = torch.tensor(expected["gradient"], dtype=torch.float64)
    assert float(value) == pytest.approx(expected["value"], abs=1e-10)
    torch.testing.assert_close(embeddings.grad, gradient, rtol=0, atol=1e-10)


def test_the_default_is_the_papers_form() -> None:
    """The query is left out and all pairs are averaged over, so that the values differ."""
    embeddings = torch.tensor(CASES[0]["embeddings"], dtype=torch.float64)
    labels, released_values = torch.tensor(CASES[0]["labels"]), CASES[0]["losses"]
    assert SmoothAP(0.05)(embeddings, labels) > released_values["smooth_ap_released"]["value"] + 0.05
    assert SupAP()(embeddings, labels) > released_values["sup_ap_released"]["value"] + 0.05
    assert Roadmap(1.0)(embeddings, labels) < released_values["calibration_released"]["value"] - 0.05
