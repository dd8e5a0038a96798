"""What is varied: the paper's schedules can be drawn, every draw is a configuration, mistakes are sentences."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st

from recollect.common.errors import ConfigError
from recollect.config.resolve import resolve, with_settings
from recollect.studies.space import Parameter, as_settings, default_space, parse_parameter, read_space


class HighEnds:
    """Stands for Optuna's trial: draws the high end of every range."""

    def __init__(self) -> None:
        self.log: dict[str, bool] = {}

    def suggest_float(self, name: str, low: float, high: float, log: bool) -> float:
        self.log[name] = log
        return high

    suggest_int = suggest_float

    def suggest_categorical(self, name: str, choices: list[object]) -> object:
        return choices[-1]


def test_the_default_space_lies_around_the_recipe() -> None:
    config = resolve("cars196/r50-512/rsk")
    space = default_space(config, 170)
    assert {name: str(parameter) for name, parameter in space.items()} == {
        "lr": "1e-05:0.001:log", "decays": "1:3", "first_decay": "0.1:0.8", "gamma": "0.1:0.5", "epochs": "85:255",
    }  # fmt: skip
    trial = HighEnds()
    draw = {name: parameter.draw(trial) for name, parameter in space.items()}
    assert draw == {"lr": 0.001, "decays": 3, "first_decay": 0.8, "gamma": 0.5, "epochs": 255}
    assert trial.log == {"lr": True, "gamma": False, "decays": False, "first_decay": False, "epochs": False}


@pytest.mark.parametrize(
    ("epochs", "decays", "first", "milestones"),
    [(50, 3, 0.4, [20, 30, 40]), (170, 2, 80 / 170, [80, 125]), (90, 1, 0.5, [45]), (90, 0, 0.5, [])],
)
def test_decays_are_spread_from_the_first_to_the_end(
    epochs: int, decays: int, first: float, milestones: list[float]
) -> None:
    drawn = {"lr": 1e-4, "gamma": 0.3, "epochs": epochs, "decays": decays, "first_decay": first}
    settings = as_settings(drawn)
    np.testing.assert_allclose(settings["optimizer.milestones"], milestones, atol=1e-3)
    assert (settings["run.epochs"], settings["run.steps"]) == (epochs, None)
    assert settings["optimizer.schedule"] == "milestones"


@given(
    epochs=st.integers(1, 300),
    decays=st.integers(0, 5),
    first=st.floats(0.05, 0.9),
    lr=st.floats(1e-6, 1.0),
    gamma=st.floats(0.01, 1.0),
)
def test_every_draw_is_a_configuration(epochs: int, decays: int, first: float, lr: float, gamma: float) -> None:
    drawn = {"lr": lr, "gamma": gamma, "epochs": epochs, "decays": decays, "first_decay": first}
    config = with_settings(resolve("glyphs"), as_settings(drawn))  # refuses milestones that do not rise or lie beyond
    assert len(config.optimizer.milestones) == decays
    assert config.run.epochs == epochs


def test_what_the_user_says() -> None:
    space = read_space(
        ["lr=1e-4:1e-2", "optimizer.gamma=0.3", "epochs=4:8", "loss.options.tau1=0.5,1,2",
         "optimizer.weight_decay=1e-5:1e-3:log"],
        default_space(resolve("glyphs"), 5),
    )  # fmt: skip
    assert space["lr"] == Parameter("lr", 1e-4, 1e-2, log=True)
    assert space["gamma"].fixed
    assert space["gamma"].draw(None) == 0.3
    assert space["loss.options.tau1"].draw(HighEnds()) == 2
    assert space["optimizer.weight_decay"].log


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lr", "write NAME=LOW:HIGH"),
        ("lr=1:2:3", "write NAME=LOW:HIGH"),
        ("lr=3:1", "the lower bound comes first"),
        ("lr=0:1", "both must be above 0"),
        ("gamma=a:b", "bounds as numbers"),
        ("optimizer.milestones=1:2", "computed from decays, first_decay and epochs"),
        ("data.name=sop,cub", "the protocol fixes it"),
        ("run.watch_test=true,false", "the protocol fixes it"),
        ("gamma=[1", "not valid YAML"),
    ],
)
def test_mistakes_are_sentences(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_parameter(text)


def test_values_that_make_no_schedule() -> None:
    for key, value, message in (("decays", 1.5, "whole number, 0 or more"), ("first_decay", 1.0, "below 1")):
        with pytest.raises(ConfigError, match=message):
            as_settings({"lr": 1e-4, "gamma": 0.3, "epochs": 5, "decays": 2, "first_decay": 0.5, key: value})
