"""Weights files: every layout gives the original's forward pass, wrong files are refused by name, nothing in one is run."""

from __future__ import annotations

import hashlib
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from recollect.common.errors import ConfigError, WeightsError
from recollect.models import backbones, weights, zoo
from recollect.models.weight_files import find_weights
from recollect.models.weights import load_weights, read_tensors

from . import originals

WIDTH, DEPTH, HEADS, GRID = 48, 2, 4, 2
AGREE = {"atol": 1e-9, "rtol": 1e-9}  # both sides in float64
CLIP = zoo.find("clip2b-b16")


def patch_of(init: str) -> int:
    return int(zoo.find(init).architecture.rsplit("/", 1)[1])


def small(init: str, **options: Any) -> nn.Module:
    """The architecture of ``init`` with its own activation, norms and flags, but narrow and shallow."""
    return backbones.timm_library().create_model(
        zoo.find(init).timm_id,
        pretrained=False,
        num_classes=0,
        img_size=GRID * patch_of(init),
        dynamic_img_size=True,
        **({"embed_dim": WIDTH, "depth": DEPTH, "num_heads": HEADS} | options),
    )


def random_file(project: str, patch: int = 16, **options: Any) -> dict[str, Tensor]:
    return originals.make_transformer(project, WIDTH, DEPTH, patch, GRID, **options)


def double(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {key: value.double() for key, value in state.items()}


def check(backbone: nn.Module, image: Tensor, expected: Tensor) -> None:
    assert expected.std() > 0.05  # a reference of zeros would agree with anything
    features = backbone.double().eval()
    ours = features(image) if expected.ndim == 2 else features.forward_features(image)  # type: ignore[operator]
    torch.testing.assert_close(ours, expected, **AGREE)


def picture(side: int) -> Tensor:
    return torch.randn(2, 3, side, side, dtype=torch.float64)


@pytest.mark.parametrize(
    ("init", "project", "layout"),
    [
        ("clip400m-b32", "clip", "clip"),
        ("clip400m-l14", "clip", "clip"),
        ("clip2b-b16", "clip", "clip"),
        ("clip2b-l14", "clip", "clip"),
        ("diht-b32", "clip", "clip"),
        ("swag-b16", "swag", "torchvision-vit"),
        ("swag-b16", "torchvision", "torchvision-vit"),
        ("dinov2-l14", "dinov2", "dinov2"),
        ("dinov2-l14", "dinov2, in chunks", "dinov2"),
    ],
)
def test_transformers(init: str, project: str, layout: str, tmp_path: Path) -> None:
    state = random_file(project, patch_of(init), text="l14" not in init)
    torch.save(state, tmp_path / "file.pth")
    backbone = small(init)
    assert load_weights(backbone, tmp_path / "file.pth", zoo.find(init)).layout == layout
    image = picture(GRID * patch_of(init))
    # The name decides the activation: files of both kinds have the same keys.
    activation = "quickgelu" if init == "clip400m-b32" else "gelu"
    check(backbone, image, originals.run_transformer(project, double(state), image, HEADS, activation))


NEWER = [name for name, row in zoo.ZOO.items() if row.hub and not row.paper_row and "timm" in row.layouts]


@pytest.mark.parametrize("name", NEWER)
def test_newer_rows_load_timms_files_strictly_at_their_own_and_at_another_size(name: str, tmp_path: Path) -> None:
    timm, row = backbones.timm_library(), zoo.find(name)
    narrow = {"embed_dim": 64, "depth": 2, "num_heads": 4}
    whole = timm.create_model(row.timm_id, pretrained=False, **narrow)
    save_file(whole.state_dict(), tmp_path / "model.safetensors")
    size = whole.pretrained_cfg["input_size"][-1]
    image = torch.randn(1, 3, size, size)
    for side in (size, 8 * backbones.patch_size(whole)):
        backbone = timm.create_model(row.timm_id, num_classes=0, img_size=side, dynamic_img_size=True, **narrow)
        assert load_weights(backbone, tmp_path / "model.safetensors", row).layout == "timm"
        if side == size:
            assert torch.equal(backbone.eval().forward_features(image), whole.eval().forward_features(image))
        else:
            assert backbone.eval()(torch.randn(1, 3, side, side)).isfinite().all()
    state = whole.state_dict()
    del state["blocks.1.norm1.weight"]
    save_file(state, tmp_path / "model.safetensors")
    with pytest.raises(WeightsError, match=r"1 missing: blocks\.1\.norm1\.weight"):
        load_weights(backbone, tmp_path / "model.safetensors", row)


def test_mlcd_in_the_layout_of_the_transformers_library(tmp_path: Path) -> None:
    state = random_file("clip", 32)
    names = {"class_embedding": "embeddings.class_embedding", "conv1.weight": "embeddings.patch_embedding.weight"}
    names |= {"positional_embedding": "embeddings.position_embedding.weight"}
    theirs = {"logit_scale": torch.tensor(2.6), "text_model.final_layer_norm.bias": torch.ones(WIDTH)}
    theirs |= {"visual_projection.weight": state["visual.proj"].T.contiguous()}
    theirs["vision_model.embeddings.position_ids"] = torch.arange(GRID * GRID + 1)[None]
    for key, value in state.items():
        if not key.startswith("visual.") or key == "visual.proj":
            continue
        name = key.removeprefix("visual.").replace("ln_pre", "pre_layrnorm").replace("ln_post", "post_layernorm")
        name = name.replace("transformer.resblocks", "encoder.layers").replace("ln_", "layer_norm")
        name = name.replace("c_fc", "fc1").replace("c_proj", "fc2").replace("attn.", "self_attn.")
        parts = {"q": 0, "k": 1, "v": 2} if "in_proj_" in name else {"": 0}
        for part, chunk in zip(parts, value.chunk(len(parts)), strict=True):
            renamed = name.replace("in_proj_", f"{part}_proj.")
            theirs[f"vision_model.{names.get(renamed, renamed)}"] = chunk.contiguous()
    save_file(theirs, tmp_path / "model.safetensors")
    backbone = small("mlcd-b32")
    assert load_weights(backbone, tmp_path / "model.safetensors", zoo.find("mlcd-b32")).layout == "clip-hf"
    image = picture(GRID * 32)
    check(backbone, image, originals.run_transformer("clip", double(state), image, HEADS, "quickgelu"))
    del theirs["vision_model.encoder.layers.0.self_attn.k_proj.bias"]
    save_file(theirs, tmp_path / "model.safetensors")
    with pytest.raises(WeightsError, match=r"blocks\.0\.attn\.qkv\.bias"):
        load_weights(backbone, tmp_path / "model.safetensors", zoo.find("mlcd-b32"))


def test_unicom(tmp_path: Path) -> None:
    state = originals.make_unicom(192, 12, 16, 14, 768)
    torch.save({key: value.half() for key, value in state.items()}, tmp_path / "unicom.pt")
    backbone = backbones.build_backbone("unicom:vit_tiny_patch16_224", 224)
    row = zoo.find("unicom-b16")
    assert load_weights(backbone, tmp_path / "unicom.pt", row).layout == "unicom"
    image, state = picture(224), double({key: value.half() for key, value in state.items()})
    tokens, vectors = originals.run_unicom(state, image, 3)
    ours = backbone.double().eval()
    torch.testing.assert_close(ours.forward_features(image), tokens, **AGREE)  # type: ignore[operator]
    torch.testing.assert_close(ours.forward_head(tokens), vectors, **AGREE)  # type: ignore[operator]
    with pytest.raises(ConfigError, match="224 px only"):
        backbones.build_backbone("unicom:vit_tiny_patch16_224", 256)


def test_dinov2_with_registers(tmp_path: Path) -> None:
    state = random_file("dinov2", 14)
    state["register_tokens"] = torch.randn(1, 4, WIDTH)
    torch.save(state, tmp_path / "dino.pth")
    backbone = small("dinov2-l14-reg").eval()
    assert load_weights(backbone, tmp_path / "dino.pth", zoo.find("dinov2-l14-reg")).layout == "dinov2"
    first = state["cls_token"] + state["pos_embed"][:, :1]
    own = dict(backbone.state_dict())
    assert torch.equal(own["cls_token"], first)
    assert torch.equal(own["pos_embed"], state["pos_embed"][:, 1:])
    assert torch.equal(own["reg_token"], state["register_tokens"])


def mobile_sam_names(keys: Any) -> dict[str, str]:
    """TinyViT's names in MobileSAM's checkpoint, by timm's."""
    names = {}
    for key in keys:
        theirs = key.replace("patch_embed.conv1", "patch_embed.seq.0").replace("patch_embed.conv2", "patch_embed.seq.2")
        if theirs.startswith("stages.") and theirs.split(".")[2] == "downsample":
            theirs = f"layers.{int(theirs.split('.')[1]) - 1}.downsample.{theirs.split('.', 3)[3]}"
        theirs = theirs.replace("stages.", "layers.").replace(".conv.", ".c.").replace("head.norm.", "norm_head.")
        names[key] = f"image_encoder.{theirs}"
    return names


def test_mobile_sam(tmp_path: Path) -> None:
    source, backbone = (backbones.build_backbone("tiny_vit_5m_224", 224) for _ in range(2))
    names = mobile_sam_names(source.state_dict())
    others = dict.fromkeys(
        ["image_encoder.head.weight", "image_encoder.neck.0.weight", "mask_decoder.x"], torch.ones(2)
    )
    torch.save({names[key]: value for key, value in source.state_dict().items()} | others, tmp_path / "sam.pt")
    row = zoo.find("tinyvit-sam")
    assert load_weights(backbone, tmp_path / "sam.pt", row).layout == "mobile-sam"
    assert all(torch.equal(value, backbone.state_dict()[key]) for key, value in source.state_dict().items())
    if (path := find_weights(row)) is not None:  # where RECOLLECT_WEIGHTS has the real file
        state = read_tensors(path)
        assert set(names.values()) <= state.keys()
        load_weights(backbone, path, row)
        assert all(torch.equal(state[names[key]], value) for key, value in backbone.state_dict().items())


@pytest.mark.parametrize("prefix", ["", "opt/target/"])
def test_jax_vit(prefix: str, tmp_path: Path) -> None:
    state = originals.make_jax_vit(WIDTH, DEPTH, 16, GRID, HEADS)
    np.savez(tmp_path / "vit.npz", **{prefix + key: value.numpy() for key, value in state.items()})
    backbone = small("vit-b16-in21k")
    assert load_weights(backbone, tmp_path / "vit.npz", zoo.find("vit-b16-in21k")).layout == "jax-vit"
    image = picture(GRID * 16)
    check(backbone, image, originals.run_jax_vit(double(state), image))


@pytest.mark.parametrize(("init", "caffe"), [("r101-caffe", True), ("r50-in1k", False)])
def test_resnets(init: str, caffe: bool, tmp_path: Path) -> None:
    layers = (1, 2, 1, 1)
    state = originals.make_resnet(layers, caffe)
    # Old files have no counters of batches, new ones do.
    torch.save(state | ({} if caffe else {"bn1.num_batches_tracked": torch.tensor(5)}), tmp_path / "resnet.pth")
    row = zoo.find(init)
    backbone = backbones.timm_library().create_model(row.timm_id, pretrained=False, num_classes=0, layers=layers)
    assert load_weights(backbone, tmp_path / "resnet.pth", row).layout == ("caffe-resnet" if caffe else "timm")
    image = picture(64)
    check(backbone, image, originals.run_resnet(double(state), image, layers, caffe))
    deeper = backbones.timm_library().create_model("resnet101", num_classes=0, layers=(1, 3, 1, 1))
    with pytest.raises(WeightsError, match=r"15 missing: .*9 more"):
        load_weights(deeper, tmp_path / "resnet.pth", row)


# The first five and the three largest logits of the bundled weights on the input below, from the plain forward pass in
# originals.py in float64.
LITE0_LOGITS = {
    0: -0.530417, 1: 0.223932, 2: -0.804973, 3: -0.785423, 4: -2.994986, 398: 13.105301, 772: 11.219849, 906: 11.188713,
}  # fmt: skip


def test_lite0_logits_are_pinned() -> None:
    row = zoo.find("lite0-in1k")
    path = find_weights(row)
    assert path is not None
    assert hashlib.sha256(path.read_bytes()).hexdigest() == row.sha256
    state = double(read_tensors(path))
    backbone = backbones.build_backbone("tf_efficientnet_lite0.in1k", 224)
    assert load_weights(backbone, path, row).layout == "efficientnet-lite"
    rows, columns = torch.meshgrid(torch.arange(96.0), torch.arange(96.0), indexing="ij")
    waves = [torch.sin(rows / (5 + i)) * torch.cos(columns / (9 - i)) for i in range(3)]
    image = torch.stack(waves)[None].double()
    logits = (backbone.double().eval()(image) @ state["_fc.weight"].T + state["_fc.bias"])[0]
    torch.testing.assert_close(logits, originals.run_lite0(state, image)[0], **AGREE)
    assert logits[[*LITE0_LOGITS]].tolist() == pytest.approx([*LITE0_LOGITS.values()], abs=2e-6)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"visual.ln_post.bias": None}, r"a\.pt.*1 missing: norm\.bias"),
        ({"visual.extra": torch.zeros(3), "odd": torch.zeros(1)}, r"not expected: odd, visual\.extra"),
        ({"visual.ln_pre.weight": torch.zeros(7)}, r"norm_pre\.weight \(7,\) .*\(48,\)"),
        ({"visual.ln_pre.weight": torch.full((WIDTH,), torch.nan)}, r"NaN.*norm_pre\.weight"),
    ],
)
def test_what_does_not_fit_is_named_and_changes_nothing(
    changes: dict[str, Tensor | None], message: str, tmp_path: Path
) -> None:
    state = random_file("clip") | changes
    torch.save({key: value for key, value in state.items() if value is not None}, tmp_path / "a.pt")
    backbone = small("clip2b-b16")
    before = {key: value.clone() for key, value in backbone.state_dict().items()}
    with pytest.raises(WeightsError, match=message):
        load_weights(backbone, tmp_path / "a.pt", CLIP)
    assert all(torch.equal(before[key], value) for key, value in backbone.state_dict().items())


@pytest.mark.parametrize(
    ("init", "project"),
    [("vit-b16-in21k", "swag"), ("swag-b16", "clip"), ("clip2b-b16", "dinov2"), ("dinov2-l14", "swag")],
)
def test_the_file_of_another_model_is_refused(init: str, project: str, tmp_path: Path) -> None:
    torch.save(random_file(project, patch_of(init)), tmp_path / "other.pth")
    with pytest.raises(WeightsError, match="belongs to another model"):
        load_weights(small(init), tmp_path / "other.pth", zoo.find(init))


def test_fine_tuned_files_are_refused(tmp_path: Path) -> None:
    torch.save(random_file("swag") | {"head.layers.head.weight": torch.zeros(1000, WIDTH)}, tmp_path / "in1k.torch")
    with pytest.raises(WeightsError, match=r"classifier of 1,000 classes.*none"):
        load_weights(small("swag-b16"), tmp_path / "in1k.torch", zoo.find("swag-b16"))
    jax = originals.make_jax_vit(WIDTH, DEPTH, 16, GRID, HEADS, classes=1000)
    np.savez(tmp_path / "ft.npz", **{key: value.numpy() for key, value in jax.items()})
    with pytest.raises(WeightsError, match=r"1,000 classes.*21,843"):
        load_weights(small("vit-b16-in21k"), tmp_path / "ft.npz", zoo.find("vit-b16-in21k"))


class Evil:
    """Writes a file when it is unpickled."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch {self.target}",)


@pytest.mark.parametrize("suffix", weights.PICKLED)
@pytest.mark.parametrize("form", ["zip", "legacy", "plain pickle", "npz"])
def test_code_in_a_file_is_refused_and_not_run(suffix: str, form: str, tmp_path: Path) -> None:
    mark, path = tmp_path / "it-ran", tmp_path / f"evil{'.npz' if form == 'npz' else suffix}"
    if form == "npz":
        np.savez(path, payload=np.array([Evil(mark)], dtype=object))
    elif form == "plain pickle":
        path.write_bytes(pickle.dumps(Evil(mark)))
    else:
        torch.save({"payload": Evil(mark)}, path, _use_new_zipfile_serialization=form == "zip")
    with pytest.raises(
        WeightsError, match=rf"{path.name}: .*({'could run code' if form in ('zip', 'legacy') else ''})"
    ):
        read_tensors(path)
    assert not mark.exists()
    if form in ("zip", "legacy"):
        torch.load(path, weights_only=False)
        assert mark.exists()  # so the test would have noticed


def test_files_without_weights_are_refused(tmp_path: Path) -> None:
    for name in ("cut.pth", "cut.safetensors", "cut.npz", "weights.txt"):
        (tmp_path / name).write_bytes(b"PK\x03\x04 not much of a file")
        with pytest.raises(WeightsError, match=rf"{name}.*{'suffix' if name.endswith('txt') else ''}"):
            read_tensors(tmp_path / name)
    for content, message in (([torch.zeros(2)], "not a state dict"), ({"epoch": 3}, "no tensors")):
        torch.save(content, tmp_path / "other.pt")
        with pytest.raises(WeightsError, match=message):
            read_tensors(tmp_path / "other.pt")
    torch.jit.trace(nn.Linear(2, 2), torch.zeros(1, 2)).save(tmp_path / "scripted.pt")
    with pytest.raises(WeightsError, match="TorchScript"):
        read_tensors(tmp_path / "scripted.pt")


@pytest.mark.parametrize("wrapping", ["state_dict", "nested", "module", "safetensors", "half"])
def test_wrapped_and_converted_files_load(wrapping: str, tmp_path: Path) -> None:
    state = random_file("clip")
    if wrapping == "half":
        state = {key: value.half() for key, value in state.items()}
    path = tmp_path / ("w.safetensors" if wrapping == "safetensors" else "w.bin")
    if wrapping == "safetensors":
        save_file(state, path)
    elif wrapping == "module":
        torch.save({"epoch": 32, "state_dict": {f"module.{key}": value for key, value in state.items()}}, path)
    else:
        torch.save({"nested": {"state_dict": {"model": state}}, "half": state}.get(wrapping, {wrapping: state}), path)
    backbone = small("clip2b-b16")
    provenance = load_weights(backbone, path, CLIP)
    assert provenance == weights.Provenance(path.name, hashlib.sha256(path.read_bytes()).hexdigest(), "clip", "MIT")
    assert all(value.dtype == torch.float32 for value in backbone.state_dict().values())
    image = picture(GRID * 16)
    check(backbone, image, originals.run_transformer("clip", double(state), image, HEADS))


def test_position_embeddings_are_resampled(tmp_path: Path) -> None:
    state = originals.make_transformer("dinov2", WIDTH, DEPTH, 14, grid=5)
    # A plane over the grid: away from the border, bicubic resampling of a plane is the same plane.
    state["pos_embed"][:, 1:] = torch.arange(5.0)[:, None].expand(5, 5).reshape(1, 25, 1).expand(1, 25, WIDTH)
    torch.save(state, tmp_path / "dino.pth")
    backbone = small("dinov2-l14")
    load_weights(backbone, tmp_path / "dino.pth", zoo.find("dinov2-l14"))
    positions = backbone.pos_embed.detach()
    assert positions.shape == (1, GRID * GRID + 1, WIDTH)  # type: ignore[union-attr]
    torch.testing.assert_close(positions[:, 0], state["pos_embed"][:, 0])  # type: ignore[index]
    grid = positions[0, 1:].reshape(GRID, GRID, WIDTH)  # type: ignore[index]
    torch.testing.assert_close(grid[0] + grid[1], torch.full((GRID, WIDTH), 4.0))  # symmetric about the middle, 2
    assert (grid[1] - grid[0] > 1.5).all()


def test_a_published_name_with_other_content_is_refused(tmp_path: Path) -> None:
    row = zoo.find("clip400m-b32")
    torch.save(random_file("clip", 32), tmp_path / row.files[0])
    with pytest.raises(WeightsError, match=r"SHA-256.*46683a32"):
        load_weights(small("clip400m-b32"), tmp_path / row.files[0], row)


def test_non_commercial_licences_are_printed_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weights._announced.clear()
    torch.save(random_file("swag"), tmp_path / "swag.torch")
    for _ in range(2):
        load_weights(small("swag-b16"), tmp_path / "swag.torch", zoo.find("swag-b16"))
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["recollect: the weights of swag-b16 are licensed CC-BY-NC-4.0: not for commercial use."]


def test_other_timm_models_load_their_own_files_strictly(tmp_path: Path) -> None:
    row = zoo.find("timm:convnext_atto.d2_in1k")
    full = backbones.timm_library().create_model(row.timm_id, pretrained=False)
    torch.save(full.state_dict(), tmp_path / "c.pth")
    backbone = backbones.build_backbone(row.timm_id or "", 64)
    load_weights(backbone, tmp_path / "c.pth", row)
    assert torch.equal(backbone.stem[0].weight, full.stem[0].weight)  # type: ignore[index,union-attr]
    torch.save(random_file("clip"), tmp_path / "clip.pth")
    with pytest.raises(WeightsError, match="does not fit"):
        load_weights(backbone, tmp_path / "clip.pth", row)
