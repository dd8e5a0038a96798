"""What large transformers are trained with: an average of the weights, rates by layer, less memory, LoRA, several processes."""

from __future__ import annotations

import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from killed import signal_at
from small_runs import built, final_weights, losses, make_images, same_bits, small_config, train_until
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from faults.trials import start_team
from recollect.common.errors import ConfigError
from recollect.inference.models import open_model
from recollect.models import Embedder
from recollect.models.backbones import add_lora, merge_lora
from recollect.step.large_batch import large_batch_step
from recollect.training.optimizer import take_step
from recollect.training.run import RunFolder
from recollect.training.trainer import train

VIT = "timm:test_vit.r160_in1k"
SMALL_VIT = {"model.init": VIT, "model.weights": "none", "model.image_size": 32, "run.steps": 4, "run.epochs": None}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_images(tmp_path_factory.mktemp("images"))


def network(init: str, size: int = 32) -> Embedder:
    torch.manual_seed(0)
    return Embedder.create(init, weights="none", size=size, resize=size, dim=8)


def pixels(count: int = 6, size: int = 32) -> Tensor:
    return torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(1))


def test_the_average_of_the_weights_is_evaluated_saved_and_resumed(root: Path, tmp_path: Path) -> None:
    decay, averages = 0.9, dict[int, dict[str, Tensor]]()
    settings = {"data.validation": "random", "run.evaluate_every": 1}
    config = small_config(root, **settings, **{"optimizer.ema": decay})
    step, number = take_step, 0

    def recorded(network: Any, trained: Any, *arguments: Any, **options: Any) -> Any:
        nonlocal number
        if not averages:
            averages[0] = {name: p.detach().double() for name, p in trained.model.named_parameters()}
        result = step(network, trained, *arguments, **options)
        number += 1
        share = 1 - min(decay, (1 + number) / (10 + number))
        averages[number] = {
            name: (1 - share) * averages[number - 1][name] + share * p.detach().double()
            for name, p in trained.model.named_parameters()
        }
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("recollect.training.trainer.take_step", recorded)
        outcome = train(config, tmp_path / "whole")
    saved = final_weights(tmp_path / "whole")
    for name, value in averages[outcome.chosen_step].items():
        torch.testing.assert_close(saved[name].double(), value, rtol=1e-5, atol=1e-6)
    plain = train(small_config(root, **settings), tmp_path / "plain")
    assert losses(tmp_path / "whole") == losses(tmp_path / "plain"), "the average does not change the training"
    assert outcome.metrics != plain.metrics
    folder = train_until(3, config, tmp_path / "killed")
    train(resume=folder)
    assert same_bits(final_weights(folder), saved)


@pytest.mark.parametrize("init", [VIT, "timm:convnext_atto.d2_in1k", "timm:resnet18.a1_in1k", "lite0-in1k"])
def test_rates_by_layer_are_those_of_timm(init: str) -> None:
    model = network(init)
    from timm.optim import param_groups_layer_decay  # after recollect has imported timm

    ours = {
        id(parameter): group["lr"]
        for group in model.parameter_groups(1.0, 0.1, layer_decay=0.5)
        for parameter in group["params"]
    }
    theirs = {
        id(parameter): group["lr_scale"]
        for group in param_groups_layer_decay(model.backbone, layer_decay=0.5)
        for parameter in group["params"]
    }
    common = ours.keys() & theirs.keys()
    assert len(common) == sum(parameter.requires_grad for parameter in model.backbone.parameters())
    assert len({ours[key] / theirs[key] for key in common}) == 1
    assert len({theirs[key] for key in common}) > 4
    assert {ours[id(parameter)] for parameter in model.head.parameters()} == {1.0}


def test_rates_by_layer_need_an_order_of_layers() -> None:
    with pytest.raises(ConfigError, match="layer_decay needs a backbone of timm"):
        network("tiny").parameter_groups(1.0, 0.1, layer_decay=0.5)


@pytest.mark.parametrize(
    "name",
    [
        *("vit_tiny_patch16_224.augreg_in21k", "eva02_tiny_patch14_224.mim_in22k", "tiny_vit_5m_224.dist_in22k"),
        *("convnext_atto.d2_in1k", "resnet18.a1_in1k", "efficientnet_lite0.ra_in1k", "test_byobnet.r160_in1k"),
    ],
)
def test_recomputed_activations_give_the_same_gradient(name: str) -> None:
    size = 56 if "eva" in name else 64
    images = pixels(size=size)

    def gradients(recompute: bool) -> list[Tensor]:
        model = network(f"timm:{name}", size).train()
        if recompute:
            model.backbone.set_grad_checkpointing()  # type: ignore[operator]
        large_batch_step(model, lambda rows, _: rows.square().cumsum(0).prod(1).sum(), images, torch.arange(6), 4)
        return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]

    plain, recomputed = gradients(False), gradients(True)
    assert len(plain) == len(recomputed) > 10
    assert all(map(torch.equal, plain, recomputed))


def test_recomputing_saves_memory(root: Path, tmp_path: Path) -> None:
    kept = {True: 0, False: 0}

    def keep(value: bool, tensor: Tensor) -> Tensor:
        kept[value] += tensor.nbytes
        return tensor

    for value in kept:
        config = small_config(root, **SMALL_VIT, **{"run.activation_checkpointing": value})
        with built(config) as training, saved_tensors_hooks(partial(keep, value), lambda tensor: tensor):
            training.network(pixels(8))
    assert kept[True] < kept[False] / 3
    with pytest.raises(ConfigError, match="tiny has no checkpoints"):
        train(small_config(root, **{"run.activation_checkpointing": True}), tmp_path / "tiny")


@pytest.mark.parametrize(
    "name", ["vit_tiny_patch16_224.augreg_in21k", "eva02_tiny_patch14_224.mim_in22k", "tiny_vit_5m_224.dist_in22k"]
)
def test_merged_lora_gives_the_same_vectors(name: str) -> None:
    size = 56 if "eva" in name else 64
    model, names = network(f"timm:{name}", size).eval(), list[str]()
    before, plain = model(pixels(size=size)), dict(model.state_dict())
    add_lora(model.backbone, 3)
    assert torch.equal(model(pixels(size=size)), before), "it starts from the network as it is"
    generator = torch.Generator().manual_seed(2)
    for name_, parameter in model.backbone.named_parameters():
        if parameter.requires_grad:
            names.append(name_)
            parameter.data = 0.1 * torch.randn(parameter.shape, generator=generator)
    assert names
    assert all(".lora_" in name_ for name_ in names)
    vectors = model(pixels(size=size))
    vectors.square().cumsum(0).prod(1).sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in model.backbone.parameters() if p.requires_grad)
    merge_lora(model.backbone)
    torch.testing.assert_close(model(pixels(size=size)), vectors)
    assert model.state_dict().keys() == plain.keys()
    assert (vectors - before).abs().max() > 1e-2


def test_a_training_with_lora_ends_with_an_ordinary_model(root: Path, tmp_path: Path) -> None:
    config = small_config(root, **SMALL_VIT, **{"model.lora": 2, "optimizer.ema": 0.5, "optimizer.lr": 0.01})
    train(config, tmp_path / "whole")
    start, end = network(VIT).state_dict(), final_weights(tmp_path / "whole")
    changed = {name for name in start if name.startswith("backbone") and not torch.equal(start[name], end[name])}
    assert start.keys() == end.keys()
    assert changed == {f"backbone.blocks.{n}.attn.{part}.weight" for n in range(6) for part in ("qkv", "proj")}
    folder = train_until(5, config, tmp_path / "killed")
    opened = open_model(str(folder)).embedder.state_dict()
    assert all(torch.allclose(opened[name], end[name], atol=1e-6) for name in end), "opened before it is finished"
    train(resume=folder)
    assert same_bits(final_weights(folder), end)
    with pytest.raises(ConfigError, match=r"model\.lora is for transformers"):
        train(small_config(root, **{"model.lora": 2}), tmp_path / "tiny")


@pytest.mark.slow
def test_a_sharded_run_goes_on_with_another_number_of_processes(root: Path, tmp_path: Path) -> None:
    """Begun on one process, taken over by two and finished on one, with all that belongs to it: as one alone."""
    settings = {"optimizer.ema": 0.5, "optimizer.clip": 0.1, "optimizer.layer_decay": 0.8, "optimizer.name": "adamw"}
    config = small_config(root, **SMALL_VIT, **settings, **{"optimizer.lr": 1e-4, "batch.chunk": 4})
    train(config, tmp_path / "alone")
    folder = train_until(2, config, tmp_path / "shared")  # with a checkpoint of step 1
    command = ["train", "--resume", str(folder), "--set", "run.shard=true"]
    arms = {rank: signal_at("step", 2, signal.SIGTERM) for rank in range(2)}
    ended = [each.wait() for each in start_team(command, tmp_path, 2, arms=arms)]
    assert [each.code for each in ended] == [128 + signal.SIGTERM] * 2, ended
    train(resume=folder, settings={"run.shard": False})
    log = RunFolder(folder).log_file.read_text()
    assert log.index("2 instead of 1: random") < log.index("1 instead of 2: random")
    assert losses(folder) == pytest.approx(losses(tmp_path / "alone"), abs=1e-5)
    one, other = final_weights(tmp_path / "alone"), final_weights(folder)
    assert max(float((one[name] - other[name]).abs().max()) for name in one) < 3e-5
