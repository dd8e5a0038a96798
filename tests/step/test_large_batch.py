"""The large-batch step gives the gradient of one ordinary backward pass, whatever the network, loss and chunks."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor, nn
from training_toys import NPair, PlainRecall, Proxies, Unit, batch, convnet, difference, gradients

from recollect.common.errors import ConfigError, InputError
from recollect.step import StepInfo, large_batch, large_batch_step


def plainly(model: nn.Module, loss: nn.Module, images: Tensor, labels: Tensor, chunk: int | None = None) -> Tensor:
    """The oracle: forward with the whole graph (in chunks only where random masks are drawn by chunk), one backward."""
    parts = images.split(chunk or len(images))
    value: Tensor = loss(torch.cat([model(part) for part in parts]), labels)
    value.backward()
    return value.detach()


@given(
    classes=st.integers(2, 5),
    each=st.integers(2, 4),
    chunk=st.integers(1, 21),
    loss=st.sampled_from([PlainRecall(), NPair()]),
)
def test_equals_one_backward_pass(classes: int, each: int, chunk: int, loss: nn.Module) -> None:
    torch.manual_seed(3)
    model, (images, labels) = convnet().double(), batch(classes, each)
    value = plainly(model, loss, images, labels)
    expected = gradients(model)
    model.zero_grad()
    info = StepInfo()
    assert large_batch_step(model, loss, images, labels, chunk, info=info) == pytest.approx(float(value), abs=1e-12)
    assert difference(gradients(model), expected) < 1e-9
    count = -(-len(labels) // chunk)
    size = -(-len(labels) // count)  # as equal as possible
    assert (info.chunk_size, info.reembedded, info.skipped) == (size, (count - 1) * size, 0)


@pytest.mark.parametrize("options", [{"dropout": 0.4}, {"drop_path": 0.5}, {"dropout": 0.3, "drop_path": 0.3}])
@pytest.mark.parametrize("chunk", [1, 7, 20])
def test_dropout_and_stochastic_depth_are_replayed(options: dict[str, float], chunk: int) -> None:
    model, (images, labels) = convnet(**options).double(), batch()
    torch.manual_seed(11)
    value = plainly(model, PlainRecall(), images, labels, chunk)
    after = torch.get_rng_state()
    expected = gradients(model)
    model.zero_grad()
    torch.manual_seed(11)
    assert large_batch_step(model, PlainRecall(), images, labels, chunk) == pytest.approx(float(value), abs=1e-12)
    assert difference(gradients(model), expected) < 1e-9
    assert torch.equal(torch.get_rng_state(), after), "the random stream must go on as after one forward pass"


@pytest.mark.parametrize("ambient", [False, True])
def test_bfloat16_autocast(ambient: bool) -> None:
    model, (images, labels) = convnet(), batch(dtype=torch.float32)
    seen: list[torch.dtype] = []
    inner = PlainRecall()

    def loss(embeddings: Tensor, labels: Tensor) -> Tensor:
        seen.append((embeddings @ embeddings.T).dtype)
        return inner(embeddings, labels)

    # Low precision rounds by chunk, so the oracle's graph is made of the same chunks.
    with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
        embeddings = torch.cat([model(part).float() for part in images.split(7)])
    value = inner(embeddings, labels)
    value.backward()
    value = value.detach()
    expected = gradients(model)
    model.zero_grad()
    if ambient:  # an outer autocast keeps cast weights between passes: ones cast without a graph must not be used
        with torch.autocast("cpu", torch.bfloat16):
            ours = large_batch_step(model, loss, images, labels, 7)
    else:
        ours = large_batch_step(model, loss, images, labels, 7, autocast=torch.bfloat16)
    assert ours == pytest.approx(float(value), abs=1e-6)
    assert difference(gradients(model), expected) < 1e-6
    assert seen == [torch.float32], "the loss computes in float32"
    model.zero_grad()
    large_batch_step(model, inner, images, labels, 7)
    assert difference(gradients(model), expected) > 1e-6, "bfloat16 had no effect: the comparison shows nothing"


def test_float16_with_scaling() -> None:
    model, (images, labels), dtypes = convnet(), batch(dtype=torch.float32), set[torch.dtype]()
    large_batch_step(model, NPair(), images, labels, 6)
    exact = gradients(model)
    model.zero_grad()
    model[-2].register_forward_hook(lambda module, inputs, output: dtypes.add(output.dtype))
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    value = large_batch_step(model, NPair(), images, labels, 6, autocast=torch.float16, scaler=scaler)
    scaled = [g / 1024 for g in gradients(model) if g is not None]
    largest = max(float(g.abs().max()) for g in exact if g is not None)
    assert difference(scaled, exact) < 0.02 * largest
    assert dtypes == {torch.float16}
    assert float(value) < 100, "the value returned is not scaled"


@pytest.mark.parametrize("scale", [None, 8.0])
def test_losses_with_parameters_and_accumulation(scale: float | None) -> None:
    """A loss's own parameters go through the same optimizer, so their gradients are scaled as well."""
    model, (images, labels), loss = convnet().double(), batch(), Proxies(5, 6).double()
    scaler = None if scale is None else torch.amp.GradScaler("cpu", init_scale=scale)
    for _ in range(2):
        plainly(model, loss, images, labels)
    expected = gradients(model, loss)
    model.zero_grad()
    loss.zero_grad()
    for _ in range(2):
        large_batch_step(model, loss, images, labels, 6, scaler=scaler)
    assert difference([g / (scale or 1) for g in gradients(model, loss) if g is not None], expected) < 1e-9


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 6), nn.Linear(3, 6)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return nn.functional.normalize(self.a(left) * self.b(right).sigmoid(), dim=1)


class AnySize(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.out = nn.Conv2d(3, 8, 3), nn.Linear(8, 6)

    def forward(self, images: list[Tensor]) -> Tensor:
        return self.out(torch.stack([self.conv(image).relu().mean(dim=(1, 2)) for image in images]))


@pytest.mark.parametrize("form", ["tuple", "dict", "list"])
def test_several_inputs(form: str) -> None:
    labels = torch.arange(5).repeat_interleave(2)
    if form == "list":
        model: nn.Module = AnySize().double()
        images: object = [torch.randn(3, 5 + i % 3, 6, dtype=torch.float64) for i in range(10)]
        embeddings = model(images)
    else:
        model = TwoInputs().double()
        left, right = torch.randn(10, 4, dtype=torch.float64), torch.randn(10, 3, dtype=torch.float64)
        images = (left, right) if form == "tuple" else {"right": right, "left": left}
        embeddings = model(left, right)
    NPair()(embeddings, labels).backward()
    expected = gradients(model)
    model.zero_grad()
    large_batch_step(model, NPair(), images, labels, 3)  # type: ignore[arg-type]
    assert difference(gradients(model), expected) < 1e-9


def test_frozen_batch_norm_is_exact_and_keeps_its_statistics() -> None:
    norm = nn.BatchNorm2d(8)
    model, (images, labels) = convnet(norm=norm).double(), batch()
    model(images)  # statistics other than the initial ones
    model.train()
    norm.eval()
    statistics = norm.running_mean.clone()
    plainly(model, PlainRecall(), images, labels)
    expected = gradients(model)
    model.zero_grad()
    large_batch_step(model, PlainRecall(), images, labels, 6)
    assert difference(gradients(model), expected) < 1e-9
    assert torch.equal(norm.running_mean, statistics)


@pytest.mark.parametrize(
    ("norm", "mode", "message"),
    [
        (nn.BatchNorm2d(8), "train", r"BatchNorm '1' .*Freeze"),
        (nn.BatchNorm2d(8, track_running_stats=False), "eval", r"BatchNorm '1' .*Freeze"),
        (nn.InstanceNorm2d(8, track_running_stats=True), "train", r"forward .*1\.running_mean"),
    ],
)
def test_layers_that_mix_images_or_change_their_state_are_refused(norm: nn.Module, mode: str, message: str) -> None:
    model, (images, labels) = convnet(norm=norm).double(), batch()
    model.train(mode == "train")
    with pytest.raises(ConfigError, match=message):
        large_batch_step(model, NPair(), images, labels, 5)
    assert all(g is None for g in gradients(model))


def test_partly_frozen_and_unused_parameters() -> None:
    model, (images, labels) = convnet().double(), batch()
    model[0].requires_grad_(False)
    model.register_parameter("unused", nn.Parameter(torch.zeros(3, dtype=torch.float64)))
    plainly(model, NPair(), images, labels)
    expected = gradients(model)
    model.zero_grad()
    large_batch_step(model, NPair(), images, labels, 6)
    assert difference(gradients(model), expected) < 1e-9
    assert expected[0] is None  # the unused parameter, which an optimizer must leave alone
    model.requires_grad_(False)
    model.zero_grad()
    large_batch_step(model, NPair(), images, labels, 6)
    assert all(g is None for g in gradients(model))


class FewMatter(nn.Module):
    """The first ``count`` images have gradients of norm 1, the others of the norm ``rest``."""

    def __init__(self, count: int, rest: float) -> None:
        super().__init__()
        self.count, self.rest = count, rest

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        weights = embeddings.new_full((len(embeddings), 1), self.rest)
        weights[: self.count] = 1
        return (embeddings * weights)[:, 0].sum()


class Graded(nn.Module):
    """Gradients of norm 0.001, 0.002 … 0.014 for the first 14 images and 1 for the last 6: together 6.105."""

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        weights = torch.cat([0.001 * torch.arange(1, 15), torch.ones(6)]).to(embeddings)
        return (embeddings[:, 0] * weights).sum()


# Sums of the smallest norms: 0.055 for ten, 0.066 for eleven, 0.105 for fourteen. The last chunk of 6 is always kept.
@pytest.mark.parametrize(("share", "skipped"), [(0.0, 0), (0.0002, 1), (0.01, 10), (0.0173, 14), (0.5, 14)])
def test_skipping_a_share_of_the_gradient(share: float, skipped: int) -> None:
    model, (images, labels), info = convnet().double(), batch(), StepInfo()
    large_batch_step(model, Graded(), images, labels, 7, skip_share=share, info=info)
    ours = gradients(model)
    assert (info.skipped, info.reembedded) == (skipped, 14 - skipped)
    assert info.negligible_share(0.01) == pytest.approx(10 / 20)
    model.zero_grad()
    embeddings = model(images)
    gradient = torch.autograd.grad(Graded()(embeddings, labels), embeddings, retain_graph=True)[0]
    gradient[:skipped] = 0
    embeddings.backward(gradient)
    assert difference(ours, gradients(model)) < 1e-9


def test_a_random_model_is_replayed_by_whole_chunks() -> None:
    model, (images, labels), info = convnet(dropout=0.5).double(), batch(), StepInfo()
    torch.manual_seed(5)
    plainly(model, FewMatter(3, 0.0), images, labels, 2)
    expected = gradients(model)
    model.zero_grad()
    torch.manual_seed(5)
    large_batch_step(model, FewMatter(3, 0.0), images, labels, 2, info=info)
    assert difference(gradients(model), expected) < 1e-9
    assert (info.reembedded, info.skipped) == (4, 14)


def test_a_loss_without_gradient_leaves_zeros() -> None:
    model, (images, labels) = convnet().double(), batch()
    value = large_batch_step(model, lambda e, y: torch.zeros(()), images, labels, 6)
    assert float(value) == 0
    assert all(g is not None and not g.any() for g in gradients(model))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"labels": torch.zeros(3)}, "one label per image"),
        ({"images": torch.zeros(0, 3, 8, 8), "labels": torch.zeros(0)}, "at least one"),
        ({"images": (torch.zeros(20, 3), torch.zeros(19, 3))}, "one label per image"),
        ({"images": "photos"}, "must be a tensor"),
        ({"chunk_size": 0}, "chunk_size must be 1 or more"),
        ({"skip_share": 1.0}, "skip_share"),
        ({"model": nn.Conv2d(3, 2, 1).double()}, r"not a tensor of shape \(5, 2, 8, 8\)"),
        ({"model": nn.Sequential(nn.Flatten(0), nn.Unflatten(0, (1, -1))).double()}, "1 embeddings for 5 images"),
    ],
)
def test_wrong_calls(change: dict[str, object], message: str) -> None:
    images, labels = batch()
    arguments = {"model": convnet().double(), "loss": NPair(), "images": images, "labels": labels, "chunk_size": 6}
    with pytest.raises((InputError, ConfigError), match=message):
        large_batch_step(**{**arguments, **change})  # type: ignore[arg-type]


def test_distributed_data_parallel_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Wrapped(nn.Sequential):
        pass

    monkeypatch.setattr(nn.parallel, "DistributedDataParallel", Wrapped)
    images, labels = batch()
    with pytest.raises(ConfigError, match=r"bare model \(model\.module\)"):
        large_batch_step(Wrapped(convnet().double()), NPair(), images, labels, 6)


def test_the_graph_of_one_chunk_only_is_ever_held() -> None:
    """Count living activations: each forward under a graph saves some, backward frees them."""
    alive, peak = set[int](), 0

    class Saved:
        def __init__(self, tensor: Tensor) -> None:
            nonlocal peak
            self.tensor = tensor
            alive.add(id(self))
            peak = max(peak, len(alive))

        def __del__(self) -> None:
            alive.discard(id(self))

    def peak_of(chunk: int, count: int) -> int:
        nonlocal peak
        model = nn.Sequential(*[m for _ in range(4) for m in (nn.Linear(6, 6), nn.Tanh())], Unit()).double()
        peak = 0
        loss = lambda e, y: e.sum()  # noqa: E731  one that saves next to nothing
        with torch.autograd.graph.saved_tensors_hooks(Saved, lambda saved: saved.tensor):
            large_batch_step(model, loss, torch.randn(count, 6).double(), torch.zeros(count), chunk)
        return peak

    assert peak_of(2, 4) == peak_of(2, 40)
    assert peak_of(2, 4) < 40


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_images_with_a_broken_gradient_are_never_skipped(bad: float) -> None:
    kept = large_batch._matters(torch.tensor([bad, 1.0, 1e-6]), 0.01)
    assert bool(kept[0])
