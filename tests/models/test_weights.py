"""Strict and safe loading: wrong files are refused by name, and nothing in a file is ever run."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from recollect.common.errors import WeightsError
from recollect.models import backbones, weights, zoo
from recollect.models.weights import load_weights, read_tensors

from . import originals
from .test_layouts import DEPTH, GRID, HEADS, WIDTH, check, double, picture, small


def clip_file(path: Path, **changes: torch.Tensor | None) -> Path:
    """A right file for ``small("clip2b-b16")``, with some tensors replaced, added or (None) left out."""
    state: dict[str, torch.Tensor | None] = dict(originals.make_clip(WIDTH, DEPTH, 16, GRID))
    for key, value in changes.items():
        state[key.replace("__", ".")] = value
    torch.save({key: value for key, value in state.items() if value is not None}, path)
    return path


CLIP = zoo.find("clip2b-b16")


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    path = clip_file(tmp_path / "a.pt", visual__ln_post__bias=None)
    with pytest.raises(WeightsError, match=r"a\.pt.*1 missing: norm\.bias"):
        load_weights(small("clip2b-b16"), path, CLIP)


def test_an_unexpected_tensor_is_named(tmp_path: Path) -> None:
    path = clip_file(tmp_path / "a.pt", visual__extra=torch.zeros(3), odd=torch.zeros(1))
    with pytest.raises(WeightsError, match=r"not expected: odd, visual\.extra"):
        load_weights(small("clip2b-b16"), path, CLIP)


def test_a_misshapen_tensor_is_named_with_both_shapes(tmp_path: Path) -> None:
    path = clip_file(tmp_path / "a.pt", visual__ln_pre__weight=torch.zeros(7))
    with pytest.raises(WeightsError, match=r"norm_pre\.weight \(7,\) .*\(48,\)"):
        load_weights(small("clip2b-b16"), path, CLIP)


def test_values_that_are_not_numbers_are_refused(tmp_path: Path) -> None:
    path = clip_file(tmp_path / "a.pt", visual__ln_pre__weight=torch.full((WIDTH,), torch.nan))
    with pytest.raises(WeightsError, match=r"NaN.*norm_pre\.weight"):
        load_weights(small("clip2b-b16"), path, CLIP)


def test_a_refused_file_changes_nothing(tmp_path: Path) -> None:
    backbone = small("clip2b-b16")
    before = {key: value.clone() for key, value in backbone.state_dict().items()}
    with pytest.raises(WeightsError):
        load_weights(backbone, clip_file(tmp_path / "a.pt", visual__ln_post__bias=None), CLIP)
    assert all(torch.equal(before[key], value) for key, value in backbone.state_dict().items())


@pytest.mark.parametrize(
    ("init", "made"),
    [
        ("vit-b16-in21k", originals.make_swag(WIDTH, DEPTH, 16, GRID)),  # the same architecture, other weights
        ("swag-b16", originals.make_clip(WIDTH, DEPTH, 16, GRID)),
        ("clip2b-b16", originals.make_dinov2(WIDTH, DEPTH, 16, GRID)),
        ("dinov2-l14", originals.make_swag(WIDTH, DEPTH, 14, GRID)),
    ],
)
def test_the_file_of_another_model_is_refused(init: str, made: dict[str, torch.Tensor], tmp_path: Path) -> None:
    torch.save(made, tmp_path / "other.pth")
    with pytest.raises(WeightsError, match="belongs to another model"):
        load_weights(small(init), tmp_path / "other.pth", zoo.find(init))


def test_fine_tuned_files_are_refused(tmp_path: Path) -> None:
    swag = originals.make_swag(WIDTH, DEPTH, 16, GRID) | {"head.layers.head.weight": torch.zeros(1000, WIDTH)}
    torch.save(swag, tmp_path / "vit_b16_in1k.torch")
    with pytest.raises(WeightsError, match=r"classifier of 1,000 classes.*none"):
        load_weights(small("swag-b16"), tmp_path / "vit_b16_in1k.torch", zoo.find("swag-b16"))
    jax = originals.make_jax_vit(WIDTH, DEPTH, 16, GRID, HEADS, classes=1000)
    np.savez(tmp_path / "ft.npz", **{key: value.numpy() for key, value in jax.items()})
    with pytest.raises(WeightsError, match=r"1,000 classes.*21,843"):
        load_weights(small("vit-b16-in21k"), tmp_path / "ft.npz", zoo.find("vit-b16-in21k"))


def test_a_resnet_of_another_depth_is_refused(tmp_path: Path) -> None:
    torch.save(originals.make_resnet((1, 1, 1, 1), caffe=True), tmp_path / "r.pth")
    backbone = backbones.timm_library().create_model("resnet101", num_classes=0, layers=(1, 2, 1, 1))
    with pytest.raises(WeightsError, match=r"15 missing: .*9 more"):
        load_weights(backbone, tmp_path / "r.pth", zoo.find("r101-caffe"))


class Evil:
    """Writes a file when it is unpickled."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch {self.target}",)


@pytest.mark.parametrize("suffix", weights.PICKLED)
@pytest.mark.parametrize("legacy", [False, True])
def test_code_in_a_pickle_is_refused_and_not_run(suffix: str, legacy: bool, tmp_path: Path) -> None:
    mark, path = tmp_path / "it-ran", tmp_path / f"evil{suffix}"
    state = {"visual.class_embedding": torch.zeros(3), "payload": Evil(mark)}
    torch.save(state, path, _use_new_zipfile_serialization=not legacy)
    with pytest.raises(WeightsError, match="could run code"):
        read_tensors(path)
    assert not mark.exists()
    torch.load(path, weights_only=False)
    assert mark.exists()  # so the test would have noticed


def test_a_plain_pickle_is_refused(tmp_path: Path) -> None:
    mark, path = tmp_path / "it-ran", tmp_path / "evil.pth"
    path.write_bytes(pickle.dumps(Evil(mark)))
    with pytest.raises(WeightsError):
        read_tensors(path)
    assert not mark.exists()


def test_pickled_objects_in_npz_are_refused(tmp_path: Path) -> None:
    mark, path = tmp_path / "it-ran", tmp_path / "evil.npz"
    np.savez(path, payload=np.array([Evil(mark)], dtype=object))
    with pytest.raises(WeightsError, match=r"evil\.npz"):
        read_tensors(path)
    assert not mark.exists()


def test_torchscript_is_refused(tmp_path: Path) -> None:
    module = torch.jit.trace(nn.Linear(2, 2), torch.zeros(1, 2))
    module.save(tmp_path / "scripted.pt")
    with pytest.raises(WeightsError, match="TorchScript"):
        read_tensors(tmp_path / "scripted.pt")


@pytest.mark.parametrize("name", ["cut.pth", "cut.safetensors", "cut.npz"])
def test_damaged_files_are_named(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"PK\x03\x04 not much of a file")
    with pytest.raises(WeightsError, match=name):
        read_tensors(tmp_path / name)


def test_files_without_weights_are_refused(tmp_path: Path) -> None:
    (tmp_path / "weights.txt").write_text("1 2 3")
    with pytest.raises(WeightsError, match="suffix"):
        read_tensors(tmp_path / "weights.txt")
    torch.save([torch.zeros(2)], tmp_path / "list.pt")
    with pytest.raises(WeightsError, match="not a state dict"):
        read_tensors(tmp_path / "list.pt")
    torch.save({"epoch": 3}, tmp_path / "none.pt")
    with pytest.raises(WeightsError, match="no tensors"):
        read_tensors(tmp_path / "none.pt")


@pytest.mark.parametrize("wrap", ["state_dict", "model", "both", "module", "safetensors", "half"])
def test_wrapped_and_converted_files_load(wrap: str, tmp_path: Path) -> None:
    state = originals.make_clip(WIDTH, DEPTH, 16, GRID)
    path = tmp_path / ("w.safetensors" if wrap == "safetensors" else "w.bin")
    if wrap == "safetensors":
        from safetensors.torch import save_file

        save_file(state, path)
    elif wrap == "module":
        torch.save({"epoch": 32, "state_dict": {f"module.{key}": value for key, value in state.items()}}, path)
    elif wrap == "both":
        torch.save({"state_dict": {"model": state}}, path)
    elif wrap == "half":
        state = {key: value.half() for key, value in state.items()}
        torch.save(state, path)
    else:
        torch.save({wrap: state, "epoch": 32}, path)
    backbone = small("clip2b-b16")
    load_weights(backbone, path, CLIP)
    assert all(value.dtype == torch.float32 for value in backbone.state_dict().values())
    image = picture(GRID * 16)
    check(backbone, image, originals.run_clip(double(state), image, HEADS, "gelu"))


def test_position_embeddings_are_resampled(tmp_path: Path) -> None:
    state = originals.make_dinov2(WIDTH, DEPTH, 14, grid=5)
    # A plane over the grid: away from the border, bicubic resampling of a plane is the same plane.
    ramp = torch.arange(5.0)[:, None].expand(5, 5).reshape(1, 25, 1).expand(1, 25, WIDTH)
    state["pos_embed"][:, 1:] = ramp
    torch.save(state, tmp_path / "dino.pth")
    backbone = small("dinov2-l14")
    load_weights(backbone, tmp_path / "dino.pth", zoo.find("dinov2-l14"))
    positions = backbone.pos_embed.detach()
    assert positions.shape == (1, GRID * GRID + 1, WIDTH)  # type: ignore[union-attr]
    torch.testing.assert_close(positions[:, 0], state["pos_embed"][:, 0])  # type: ignore[index]
    grid = positions[0, 1:].reshape(GRID, GRID, WIDTH)  # type: ignore[index]
    torch.testing.assert_close(grid[0] + grid[1], torch.full((GRID, WIDTH), 4.0))  # symmetric about the middle, 2
    assert (grid[1] - grid[0] > 1.5).all()


def test_old_files_without_batch_counters_and_new_ones_with_them(tmp_path: Path) -> None:
    layers = (1, 1, 1, 1)
    state = originals.make_resnet(layers, caffe=False)
    for name, extra in (("old", {}), ("new", {"bn1.num_batches_tracked": torch.tensor(5)})):
        torch.save(state | extra, tmp_path / f"{name}.pth")
        backbone = backbones.timm_library().create_model("resnet50.tv_in1k", num_classes=0, layers=layers)
        load_weights(backbone, tmp_path / f"{name}.pth", zoo.find("r50-in1k"))


def test_provenance(tmp_path: Path) -> None:
    import hashlib

    path = clip_file(tmp_path / "a.pt")
    found = load_weights(small("clip2b-b16"), path, CLIP)
    assert found.file == "a.pt"
    assert found.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert (found.licence, found.non_commercial) == ("MIT", False)


def test_a_published_name_with_other_content_is_refused(tmp_path: Path) -> None:
    row = zoo.find("clip400m-b32")
    torch.save(originals.make_clip(WIDTH, DEPTH, 32, GRID), tmp_path / row.files[0])
    with pytest.raises(WeightsError, match=r"SHA-256.*46683a32"):
        load_weights(small("clip400m-b32"), tmp_path / row.files[0], row)


def test_non_commercial_licences_are_printed_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weights._said.clear()
    torch.save(originals.make_swag(WIDTH, DEPTH, 16, GRID), tmp_path / "swag.torch")
    for _ in range(2):
        load_weights(small("swag-b16"), tmp_path / "swag.torch", zoo.find("swag-b16"))
    said = capsys.readouterr().err
    assert said.count("not for commercial use") == 1
    assert "swag-b16" in said
    assert "CC-BY-NC-4.0" in said


def test_filling_a_meta_model_is_refused(tmp_path: Path) -> None:
    with torch.device("meta"):
        backbone = small("clip2b-b16")
    with pytest.raises(WeightsError, match="meta device"):
        load_weights(backbone, clip_file(tmp_path / "a.pt"), CLIP)


def test_other_timm_models_load_their_own_files_strictly(tmp_path: Path) -> None:
    timm = backbones.timm_library()
    row = zoo.find("timm:convnext_atto.d2_in1k")
    full = timm.create_model(row.timm_id, pretrained=False)
    torch.save(full.state_dict(), tmp_path / "c.pth")
    backbone = backbones.build_backbone(row.timm_id or "", 64)
    load_weights(backbone, tmp_path / "c.pth", row)
    assert torch.equal(backbone.stem[0].weight, full.stem[0].weight)  # type: ignore[index,union-attr]
    torch.save(originals.make_clip(WIDTH, DEPTH, 16, GRID), tmp_path / "clip.pth")
    with pytest.raises(WeightsError, match="does not fit"):
        load_weights(backbone, tmp_path / "clip.pth", row)
