"""Batches of images that keep their shape: the same gradient as one at a time, exact resuming, several processes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from PIL import Image
from small_runs import losses, make_images, resumes_exactly, small_config
from torch import Tensor
from training_toys import NPair, difference, gradients

from faults.trials import start_team
from recipes import landmarks
from recollect import Embedder, RecallAtK
from recollect.config.resolve import resolve
from recollect.step import StepInfo, large_batch, large_batch_step
from recollect.training.run import RunFolder
from recollect.training.trainer import train

pytestmark = pytest.mark.filterwarnings("ignore::recollect.common.errors.DataWarning")
SIDES = st.sampled_from([8, 12, 17])


def pictures(sizes: list[tuple[int, int]], seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(0, 256, (3, *size), generator=generator, dtype=torch.uint8) for size in sizes]


@pytest.fixture(scope="module")
def tiny() -> Embedder:
    torch.manual_seed(0)
    return Embedder.create("tiny", size=32, resize=None, dim=8).double()


@settings(max_examples=6, deadline=None)
@given(st.lists(st.tuples(SIDES, SIDES), min_size=8, max_size=8), st.integers(1, 9), st.sampled_from(["rank", "npair"]))
def test_a_step_on_a_list_is_a_step_on_each_alone(
    tiny: Embedder, sizes: list[tuple[int, int]], chunk: int, kind: str
) -> None:
    images, labels = pictures(sizes), torch.arange(4).repeat_interleave(2)
    loss = RecallAtK(k=(1, 2)) if kind == "rank" else NPair()
    tiny.zero_grad()
    value = loss(torch.cat([tiny(image[None]) for image in images]), labels)
    value.backward()
    expected = gradients(tiny)
    tiny.zero_grad()
    ours = large_batch_step(tiny, loss, images, labels, chunk)
    assert abs(float(ours - value.detach())) < 1e-9
    assert difference(gradients(tiny), expected) < 1e-9


def test_auto_fits_the_largest_image(tiny: Embedder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever it stands in the list: a chunk may hold large images only."""
    images = pictures([(8, 8)] * 11 + [(32, 24)])
    weight = large_batch.graph_weight(lambda count: tiny([images[-1]] * count), tiny)
    monkeypatch.setattr(large_batch, "CPU_BUDGET", weight.fixed + 3.5 * weight.each)
    assert large_batch.find_chunk(tiny, images) == 3
    assert large_batch.find_chunk(tiny, images[:11]) == 11, "remembered by size"
    info = StepInfo()
    large_batch_step(tiny, NPair(), images, torch.arange(12) // 2, info=info)
    assert info.chunk_size == 3


# Whole trainings -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """12 classes of 6 patterns with noise, every image of a shape of its own."""
    folder = tmp_path_factory.mktemp("whole")
    random = np.random.default_rng(0)
    for number in range(12):
        pattern = Image.fromarray(random.integers(0, 256, (4, 4, 3), dtype=np.uint8))
        (folder / "train" / f"{number:02d}").mkdir(parents=True)
        for image in range(6):
            size = tuple(int(side) for side in random.integers(14, 40, 2))
            noisy = np.asarray(pattern.resize(size, Image.Resampling.NEAREST)) + random.normal(0, 60, (*size[::-1], 3))
            Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(
                folder / "train" / f"{number:02d}" / f"{image}.png"
            )
    return make_images(folder, classes=2, each=2, split="test")


WHOLE = {"data.augmentation": "whole", "model.resize": None, "model.image_size": 24, "run.checkpoint_minutes": 60}


def test_resuming_is_exact(root: Path, tmp_path: Path) -> None:
    """In the middle of an epoch, images mirrored at random, read ahead by threads."""
    settings = {**WHOLE, "run.checkpoint_steps": 2, "data.workers": 2, "data.cache": "ram"}
    assert resumes_exactly(small_config(root, **settings), tmp_path)


@pytest.mark.slow
@pytest.mark.release
def test_two_processes_train_and_validate_as_one(tmp_path: Path) -> None:
    """The recipe of instance search, whitening and SfM-120k included."""
    torch.set_num_threads(1)
    landmarks.make_gldv1(tmp_path / "gldv1", range(40), each=4)
    landmarks.make_sfm(tmp_path / "sfm", range(100, 107))
    places = {"data.root": str(tmp_path / "gldv1"), "data.validation_root": str(tmp_path / "sfm")}
    short = {"run.steps": 3, "batch.size": 16, "batch.chunk": 5, "model.whitening": 160, "model.image_size": 40}
    config = resolve("gldv1/r101/rsk-simix", {**landmarks.SETTINGS, **places, **short, "optimizer.name": "sgd"})
    alone = train(config, tmp_path / "alone")
    command = ["train", str(tmp_path / "alone" / "config.yaml"), "--out", str(tmp_path / "two")]
    first, second = [process.wait() for process in start_team(command, tmp_path, 2)]
    assert (first.code, second.code) == (0, 0), (first, second)
    assert "8 on each of 2 processes" in first.out
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "alone"), abs=1e-3)
    outcome = RunFolder(tmp_path / "two").read_manifest()["outcome"]
    assert outcome["metrics"]["val"] == pytest.approx(alone.metrics["val"], abs=0.02)
