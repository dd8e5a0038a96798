"""A run published to a stand-in of the Hub and loaded from it; the folder and the card without any network."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
import yaml

from cli.running import run as command
from recollect.common.errors import DataError, InputError, RecollectError, WeightsError
from recollect.inference.models import open_model
from recollect.models import Embedder
from recollect.report.publishing import model_card, publish
from recollect.report.results import read_run
from recollect.training.trainer import train
from training.small_runs import make_images, small_config

if TYPE_CHECKING:
    from report.hub_stand_in import HubStandIn

PIXELS = torch.randint(0, 256, (2, 3, 24, 24), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("published")
    make_images(place / "secret" / "photos")
    make_images(place / "secret" / "photos", classes=4, split="test", seed=1)
    train(small_config(place / "secret" / "photos", **{"run.watch_test": True}), place / "run")
    return place / "run"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[HubStandIn]:
    constants = pytest.importorskip("huggingface_hub.constants")
    pytest.importorskip("uvicorn")
    stand_in = import_module("report.hub_stand_in").HubStandIn()
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("HF_ENDPOINT", stand_in.endpoint)
    monkeypatch.setenv("HF_TOKEN", "hf_of_a_test")
    yield stand_in
    stand_in.close()


def test_the_folder_is_written_and_checked_without_a_network(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_network(*_: Any) -> None:
        raise AssertionError("the network was used")

    monkeypatch.setattr(socket.socket, "connect", no_network)
    command("publish", run, "--folder", tmp_path / "out")
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {"README.md", "training.yaml", "embedder.json", "model.safetensors"}
    assert torch.equal(Embedder.load(tmp_path / "out")(PIXELS), Embedder.load(run)(PIXELS))
    text = "".join(path.read_text() for path in (tmp_path / "out").iterdir() if path.suffix != ".safetensors")
    assert "secret" not in text, "no path of this machine"
    card = (tmp_path / "out" / "README.md").read_text()
    front = yaml.safe_load(card.split("---")[1])
    assert front["library_name"] == "recollect"
    assert "recall_at_k" in card
    assert "r@1" in card
    assert "random weights" in card
    with pytest.raises(InputError, match="not empty"):
        publish(run, folder=tmp_path / "out")


def test_publish_and_load_by_address(run: Path, hub: HubStandIn, tmp_path: Path) -> None:
    done = publish(run, "ada/birds")
    assert set(hub.files["ada/birds"]) == {"README.md", "training.yaml", "embedder.json", "model.safetensors"}
    assert hub.tokens == {"Bearer hf_of_a_test"}
    assert done.address == f"hf://ada/birds@{hub.commit_of('ada/birds')}"
    assert 'Embedder.load("hf://ada/birds")' in hub.files["ada/birds"]["README.md"].decode()
    with pytest.raises(WeightsError, match="--download"):
        open_model("hf://ada/birds")
    assert torch.equal(Embedder.load("hf://ada/birds")(PIXELS), Embedder.load(run)(PIXELS))
    asked = len(hub.requests)
    assert torch.equal(Embedder.load("hf://ada/birds")(PIXELS), Embedder.load(run)(PIXELS))
    opened = open_model("hf://ada/birds")
    assert len(hub.requests) == asked, "what is here once needs no network"
    assert opened.provenance["model"] == done.address
    assert open_model(str(done.address)).embedder.dim == 16, "a pinned commit is found on this machine too"
    assert opened.results == Path("runs/hub-ada--birds/eval")


def test_a_newer_commit_is_fetched_when_asked(run: Path, hub: HubStandIn) -> None:
    publish(run, "ada/birds")
    Embedder.load("hf://ada/birds")
    publish(run, "ada/birds", dim=4)
    assert Embedder.load("hf://ada/birds").dim == 16
    assert Embedder.load("hf://ada/birds", download=True).dim == 4
    assert Embedder.load("hf://ada/birds").dim == 4


def test_what_the_hub_holds_is_not_trusted(run: Path, hub: HubStandIn) -> None:
    publish(run, "ada/birds")
    hub.sizes["model.safetensors"] = 10**12
    with pytest.raises(WeightsError, match="the limit is"):
        Embedder.load("hf://ada/birds")
    hub.sizes.clear()
    content = bytearray(hub.files["ada/birds"]["model.safetensors"])
    content[-1] ^= 1
    hub.files["ada/birds"]["model.safetensors"] = bytes(content)
    with pytest.raises(WeightsError, match="SHA-256"):
        Embedder.load("hf://ada/birds", download=True)
    asked = {line.rpartition("/")[2] for line in hub.requests if "/resolve/" in line}
    assert asked == {"embedder.json", "model.safetensors"}, "nothing else is ever fetched"


def test_a_hub_that_refuses_or_has_nothing(run: Path, hub: HubStandIn) -> None:
    with pytest.raises(WeightsError, match="cannot be downloaded"):
        Embedder.load("hf://ada/nothing")
    hub.refuse = 403
    with pytest.raises(RecollectError, match="could not be published"):
        publish(run, "ada/birds")


def test_what_cannot_be_published(run: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--to"):
        publish(run)
    Embedder.load(run).save(tmp_path / "saved")
    with pytest.raises(DataError, match="finished run"):
        publish(tmp_path / "saved", folder=tmp_path / "out")
    with pytest.raises(InputError, match="main branch"):
        publish(run, "ada/birds@v2")
    assert not (tmp_path / "out").exists()


def test_hostile_names_stay_text(run: Path) -> None:
    opened = open_model(run)
    config = opened.config
    evil = "x`</td><script>alert(1)</script>| [a](javascript:b)\n---\nlicense: mit"
    config = replace(config, name=evil, data=replace(config.data, name=evil, train_split=evil))
    read = replace(read_run(run), evaluated={evil: {"r@1": 0.5}})
    card = model_card(opened.embedder, config, read, licence="Weird: [licence]\nx: y")
    assert "<script" not in card
    assert "](javascript" not in re.sub("`[^`]*`", "", card), "outside of code there is no link"
    front = yaml.safe_load(card.split("\n---\n")[0])
    assert front["license"] == "other"
    assert "x" not in front
    rows = [line for line in card.splitlines() if line.startswith("| ") and "alert" in line]
    assert rows
    assert all(len(re.findall(r"(?<!\\)\|", line)) == 3 for line in rows)
