"""Whitening as a last layer, learned from pairs of SfM-120k or from labels, before or after training."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from small_runs import make_images

from cli.running import run
from recollect.common.errors import ConfigError, InputError
from recollect.inference.training_record import TrainedOn, read_trained_on
from recollect.inference.vectors import head_inputs
from recollect.inference.whitening import WhiteningSet, add_last_layer
from recollect.models import Embedder, whitening_from_pairs

IMAGES = 260  # as many pairs as ``tiny`` has features, and a few more


@pytest.fixture(scope="module")
def sfm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures of noise in the layout of SfM-120k, each paired with the next; the last image is in no pair."""
    root = tmp_path_factory.mktemp("sfm")
    names = [f"{number:032x}" for number in range(IMAGES + 1)]
    rng = np.random.default_rng(0)
    for name in names:
        path = root / "retrieval-SfM-120k" / "ims" / name[-2:] / name[-4:-2] / name[-6:-4] / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (16, 16, 3), dtype=np.uint8)).save(path, format="png")
    pairs = {"cids": names, "qidxs": list(range(IMAGES - 1)), "pidxs": list(range(1, IMAGES))}
    (root / "retrieval-SfM-120k" / "retrieval-SfM-120k-whiten.pkl").write_bytes(pickle.dumps(pairs))
    return root


@pytest.fixture
def network() -> Embedder:
    torch.manual_seed(0)
    return Embedder.create("tiny", dim=None, pooling="gem", size=16, resize=16).eval()


def test_the_last_layer_is_the_whitening_of_the_pairs(sfm: Path, network: Embedder) -> None:
    whitening_set = WhiteningSet.from_sfm(sfm)
    assert len(whitening_set.images) == IMAGES
    whitened = add_last_layer(network, whitening_set, 32)
    features = head_inputs(whitened, whitening_set.images)
    expected = whitening_from_pairs(features, torch.arange(IMAGES - 1), torch.arange(1, IMAGES))
    assert whitened.dim == 32
    images = whitening_set.images.subset(np.arange(5))
    vectors = whitened.embed([images.read(number) for number in range(5)], progress=False)
    torch.testing.assert_close(vectors, expected(features[:5], 32), rtol=0, atol=1e-3)
    with pytest.raises(ConfigError, match="already has a last layer"):
        add_last_layer(whitened, whitening_set)


def test_over_scales_an_added_whitening_is_applied_to_the_mean_descriptor(
    sfm: Path, network: Embedder, tmp_path: Path
) -> None:
    """As cirtorch does: the power mean of GeM's descriptors, of which the whitening is learned and to which it is applied."""
    whitening_set, scales = WhiteningSet.from_sfm(sfm), (1.0, 2.0)
    whitened = add_last_layer(network, whitening_set, 32, scales=scales)
    pixels = torch.stack(
        [torch.from_numpy(np.array(whitening_set.images.read(number))).permute(2, 0, 1) for number in range(IMAGES)]
    )
    with torch.no_grad():
        normalized = network.normalize(pixels)
        larger = F.interpolate(normalized, scale_factor=2.0, mode="bilinear", align_corners=False)
        each = [F.normalize(network.pooled(images)) for images in (normalized, larger)]
    mean = F.normalize((each[0] ** 3 + each[1] ** 3) ** (1 / 3))
    torch.testing.assert_close(network.embed(pixels, scales=scales, progress=False), mean, rtol=0, atol=1e-5)
    expected = whitening_from_pairs(mean, torch.arange(IMAGES - 1), torch.arange(1, IMAGES))(mean, 32)
    whitened.save(tmp_path / "made")
    for model in (whitened, Embedder.load(tmp_path / "made")):
        torch.testing.assert_close(model.embed(pixels, scales=scales, progress=False), expected, rtol=0, atol=2e-3)


def test_the_verb(sfm: Path, network: Embedder, tmp_path: Path) -> None:
    network.save(tmp_path / "trained")
    record = TrainedOn("photos", "", frozenset({"a class"}), frozenset(), np.zeros((0, 16), np.uint8))
    record.write(tmp_path / "trained")
    whiten = ("whiten", tmp_path / "trained", "--out", tmp_path / "made")
    for options, message in (((), "give the images"), (("--data", "glyphs", "--dim", 60000), "60000")):
        with pytest.raises(ConfigError, match=message):
            run(*whiten, *options)
    run(*whiten, "--pairs", sfm, "--dim", 8)
    assert Embedder.load(tmp_path / "made").dim == 8
    again = read_trained_on(tmp_path / "made")
    assert again is not None, "what was trained on is not forgotten"
    assert again.classes == {"a class"}


def test_few_images_have_a_way_that_works(network: Embedder, tmp_path: Path) -> None:
    network.save(tmp_path / "trained")
    photos = make_images(tmp_path / "photos", classes=4, each=3)
    with pytest.raises(InputError, match="12 pairs of images for 192 features") as refused:
        run("whiten", tmp_path / "trained", "--data", photos, "--out", tmp_path / "made")
    advised = str(refused.value).rpartition("instead: recollect ")[2].removesuffix(".").replace("FOLDER", str(photos))
    run(*advised.split(), "--init", "tiny", "--image-size", 16, "--device", "cpu", "--out", tmp_path / "run")
    assert Embedder.load(tmp_path / "run" / "model").head.linear is not None
