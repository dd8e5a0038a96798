"""The seam to models: vectors are the embedder's, and its fingerprint knows it again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from recollect.common.errors import ImageError
from recollect.inference.vectors import embed_files
from recollect.models import Embedder
from recollect.search import Index, OtherModelError
from recollect.search.encoder import Encoder, ModelEncoder, fingerprint, open_encoder
from search.toy_model import ToyEncoder, make_photos, save_model


def test_vectors_are_the_embedders(tmp_path: Path) -> None:
    model, photos = save_model(tmp_path / "model"), make_photos(tmp_path / "photos")
    paths = sorted(photos.rglob("*.png"))
    encoder = open_encoder(model)
    assert isinstance(encoder, Encoder)
    assert isinstance(ToyEncoder(), Encoder)
    assert open_encoder(encoder) is encoder
    expected = Embedder.load(model).embed(paths, progress=False).numpy()
    np.testing.assert_allclose(encoder.embed(paths), expected, atol=1e-6)
    assert (encoder.dim, encoder.provenance["name"], encoder.provenance["model"]) == (8, "tiny", str(model.resolve()))
    bad: dict[int, ImageError] = {}
    rows = encoder.embed([paths[0], b"junk"], bad.__setitem__)
    assert np.isnan(rows[1]).all()
    assert list(bad) == [1]
    with pytest.raises(ImageError):
        encoder.embed([b"junk"])
    assert open_encoder(Embedder.load(model)).fingerprint == encoder.fingerprint


def test_files_that_another_verb_has_embedded_do_not_go_through_the_network_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RECOLLECT_CACHE", str(tmp_path / "cache"))
    model, photos = save_model(tmp_path / "model"), make_photos(tmp_path / "photos")
    paths = sorted(photos.rglob("*.png"))
    embed_files(Embedder.load(model), paths[:15])
    encoder = ModelEncoder(embedder := Embedder.load(model), {"model": None})
    embedded: list[int] = []
    first = next(module for module in embedder.modules() if isinstance(module, torch.nn.Conv2d))
    first.register_forward_hook(lambda module, inputs, output: embedded.append(len(inputs[0])))
    (photos / "class3" / "broken.png").write_bytes(b"junk")
    bad: dict[int, ImageError] = {}
    asked = [*paths, paths[0], photos / "class3" / "broken.png"]
    rows = encoder.embed(asked, bad.__setitem__)
    assert sum(embedded) == 5
    assert list(bad) == [21]
    assert "broken.png" in str(bad[21])
    assert np.isnan(rows[21]).all()
    expected = embedder.embed(paths, progress=False).numpy()
    np.testing.assert_allclose(rows[:21], expected[[*range(20), 0]], atol=1e-6)
    with pytest.raises(ImageError, match=r"broken\.png"):
        encoder.embed(asked)


def test_a_fingerprint_changes_with_weights_and_preprocessing(tmp_path: Path) -> None:
    model = save_model(tmp_path / "model")
    first = fingerprint(Embedder.load(model))
    assert fingerprint(Embedder.load(model)) == first
    moved = Embedder.load(model)
    with torch.no_grad():
        next(moved.parameters()).add_(1e-3)
    assert fingerprint(moved) != first
    for change in ({"preprocessing": replace(moved.preprocessing, interpolation="bicubic")}, {"pooling": "max"}):
        other = Embedder.load(model)
        other.config = replace(other.config, **change)
        assert fingerprint(other) != first


def test_an_index_opens_its_model_and_notices_another(tmp_path: Path) -> None:
    model, photos = save_model(tmp_path / "model"), make_photos(tmp_path / "photos")
    with Index.create(tmp_path / "x.index", str(model)) as index:
        assert index.sync(photos).added == 20
    with Index.open(tmp_path / "x.index") as index:
        assert index.search(photos / "class1" / "2.png", 1)[0].id == "class1/2.png"
    save_model(model, seed=1)
    with Index.open(tmp_path / "x.index") as index, pytest.raises(OtherModelError, match="differ"):
        index.search(photos / "class1" / "2.png")
