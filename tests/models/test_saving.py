from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from recollect.common.errors import DataError, WeightsError
from recollect.models import Embedder, weights

PIXELS = torch.randint(0, 256, (5, 3, 48, 48), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    ("init", "options"),
    [
        ("lite0-in1k", {"dim": None, "normalization": "imagenet"}),
        ("tiny-grey", {"dim": 7, "p": 4.5, "learn_p": False, "batch_norm": "trained"}),
        ("tiny", {"layer_norm": False, "l2_before_head": True, "resize": None, "interpolation": "lanczos"}),
        ("timm:vit_tiny_patch16_224.augreg_in21k", {"weights": "none", "size": 48, "pooling": "avg"}),
        ("timm:resnet18.a1_in1k", {"weights": "none", "batch_norm": "statistics", "pooling": "gem"}),
    ],
)
def test_a_loaded_embedder_is_the_same_to_the_bit(init: str, options: dict[str, Any], tmp_path: Path) -> None:
    embedder = Embedder.create(init, **options)
    with torch.no_grad():  # so that the file is what counts, not the initialisation
        for value in embedder.state_dict().values():
            if value.is_floating_point():
                value.add_(torch.rand_like(value) * 0.01)
    before = embedder.embed(PIXELS, progress=False)
    embedder.save(tmp_path / "saved")
    torch.manual_seed(99)
    loaded = Embedder.load(tmp_path / "saved")
    assert loaded.config == embedder.config
    assert torch.equal(loaded.embed(PIXELS, progress=False), before)
    assert not loaded.training
    flags = [p.requires_grad for p in embedder.parameters()]
    assert [p.requires_grad for p in loaded.parameters()] == flags


def test_the_description_says_where_it_is_from(tmp_path: Path) -> None:
    Embedder.create("lite0-in1k", size=96).save(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"model.safetensors", "embedder.json"}
    description = json.loads((tmp_path / "embedder.json").read_text())["embedder"]
    assert description["preprocessing"] == {
        "size": 96, "resize": 110, "interpolation": "bicubic", "max_side": None,
        "mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5, 0.5],
    }  # fmt: skip
    assert description["provenance"]["sha256"].startswith("57934424")
    assert description["provenance"]["licence"] == "Apache-2.0"


def test_nothing_is_overwritten_unasked(tmp_path: Path) -> None:
    first = Embedder.create("tiny").eval()
    first.save(tmp_path)
    second = Embedder.create("tiny").eval()
    with pytest.raises(DataError, match="already contains"):
        second.save(tmp_path)
    assert torch.equal(Embedder.load(tmp_path)(PIXELS), first(PIXELS))
    second.save(tmp_path, overwrite=True)
    assert torch.equal(Embedder.load(tmp_path)(PIXELS), second(PIXELS))


def test_damaged_and_mixed_folders_are_refused(tmp_path: Path) -> None:
    Embedder.create("tiny").save(tmp_path / "a")
    Embedder.create("tiny").save(tmp_path / "b")
    (tmp_path / "a" / "model.safetensors").write_bytes((tmp_path / "b" / "model.safetensors").read_bytes())
    with pytest.raises(WeightsError, match="SHA-256"):
        Embedder.load(tmp_path / "a")
    os.truncate(tmp_path / "b" / "model.safetensors", 1000)
    with pytest.raises(WeightsError, match="SHA-256"):
        Embedder.load(tmp_path / "b")
    (tmp_path / "b" / "model.safetensors").unlink()
    with pytest.raises(WeightsError, match="missing"):
        Embedder.load(tmp_path / "b")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 2}, "format 2"),
        ({"embedder": None}, "incomplete"),
        ({"sha256": {}}, "incomplete"),
        ({"architecture": "nosuch50"}, r"embedder\.json: .* cannot be built here: timm .* no architecture 'nosuch50'"),
        ({"architecture": 5}, "cannot be built here"),
        ({"pooling": "nosuch"}, "cannot be built here"),
    ],
)
def test_descriptions_that_cannot_be_used_are_refused(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    Embedder.create("tiny").save(tmp_path)
    description = json.loads((tmp_path / "embedder.json").read_text())
    target = description if change.keys() <= description.keys() else description["embedder"]
    target |= change
    (tmp_path / "embedder.json").write_text(json.dumps(description))
    with pytest.raises(WeightsError, match=message):
        Embedder.load(tmp_path)


def test_a_licence_travels_with_what_grew_from_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Embedder.create("tiny").save(tmp_path)
    description = json.loads((tmp_path / "embedder.json").read_text())
    description["embedder"]["provenance"] |= {"licence": "CC-BY-NC-4.0", "non_commercial": True}
    (tmp_path / "embedder.json").write_text(json.dumps(description))
    weights._announced.clear()
    Embedder.load(tmp_path)
    assert "CC-BY-NC-4.0: not for commercial use" in capsys.readouterr().err


def test_the_embedder_of_a_run(tmp_path: Path) -> None:
    embedder = Embedder.create("tiny").eval()
    embedder.save(tmp_path / "run" / "model")
    with torch.no_grad():
        assert torch.equal(Embedder.load(tmp_path / "run")(PIXELS), embedder(PIXELS))
    (tmp_path / "unfinished" / "checkpoints").mkdir(parents=True)
    with pytest.raises(WeightsError, match="open_model"):
        Embedder.load(tmp_path / "unfinished")
    with pytest.raises(WeightsError, match="not a saved embedder"):
        Embedder.load(tmp_path)


def test_a_new_folder_has_both_files_or_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise DataError("the disk is full")

    embedder = Embedder.create("tiny")
    with monkeypatch.context() as patch:
        patch.setattr("recollect.models.saving.write_json", refuse)
        with pytest.raises(DataError, match="full"):
            embedder.save(tmp_path / "saved")
    assert not list(tmp_path.iterdir())
    embedder.save(tmp_path / "saved")
