from __future__ import annotations

import pytest
import torch
from hypothesis import given, strategies as st

from recollect.common.errors import ConfigError
from recollect.models.pooling import GeM, Head, generalized_mean, make_pooling, unit


def plain_gem(x: torch.Tensor, p: float, eps: float = 1e-6) -> torch.Tensor:
    """The equation."""
    return x.clamp(min=eps).pow(p).mean((2, 3)).pow(1 / p)


@given(p=st.floats(0.5, 12), scale=st.floats(1e-3, 1e3), zeros=st.floats(0, 1), seed=st.integers(0, 1000))
def test_value_and_gradient_are_those_of_the_equation(p: float, scale: float, zeros: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(2, 3, 3, 4, generator=generator, dtype=torch.float64) * scale
    x = x * (torch.rand(x.shape, generator=generator) > zeros)  # dead positions, as after ReLU
    results = []
    for function in (generalized_mean, plain_gem):
        inputs = x.clone().requires_grad_()
        exponent = torch.tensor([p], dtype=torch.float64, requires_grad=True)
        value = function(inputs, exponent)  # type: ignore[arg-type]
        value.square().sum().backward()
        results.append((value.detach(), inputs.grad, exponent.grad))
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=1e-9 * max(1, scale**2))


def test_a_large_learned_exponent_stays_finite_in_float32() -> None:
    # 1e-6 ** 9 and 80 ** 30 are beyond float32; a dead channel must not turn the gradient into NaN.
    x = torch.cat([torch.zeros(2, 2, 4, 4), torch.full((2, 2, 4, 4), 80.0)], dim=1).requires_grad_()
    assert GeM().p.item() == 3
    assert not GeM(learned=False).p.requires_grad
    with pytest.raises(ConfigError, match="above 0"):
        GeM(0.0)
    for p in (9.0, 30.0):
        pool = GeM(p)
        value = pool(x)
        value.sum().backward()
        assert torch.isfinite(value).all()
        assert torch.isfinite(pool.p.grad).all()  # type: ignore[arg-type]
        torch.testing.assert_close(value[:, 2:], torch.full((2, 2), 80.0))


def test_other_poolings() -> None:
    maps, tokens = torch.rand(2, 3, 4, 5), torch.rand(2, 7, 3)
    poolings = {name: make_pooling(name, kind="maps") for name in ("avg", "max")}
    torch.testing.assert_close(poolings["avg"](maps), maps.mean((2, 3)))  # type: ignore[misc]
    torch.testing.assert_close(poolings["max"](maps), maps.amax((2, 3)))  # type: ignore[misc]
    cls = make_pooling("cls", kind="tokens", prefix_tokens=1)
    torch.testing.assert_close(cls(tokens), tokens[:, 0])  # type: ignore[misc]
    average = make_pooling("avg", kind="tokens", prefix_tokens=2)
    torch.testing.assert_close(average(tokens), tokens[:, 2:].mean(1))  # type: ignore[misc]
    last = make_pooling("gem", kind="maps-last")
    torch.testing.assert_close(last(maps.permute(0, 2, 3, 1)), plain_gem(maps, 3.0))  # type: ignore[misc]
    assert make_pooling("native", kind="tokens") is None
    for name, kind in (("gem", "tokens"), ("max", "tokens"), ("cls", "maps"), ("sum", "maps")):
        with pytest.raises(ConfigError):
            make_pooling(name, kind=kind, prefix_tokens=1)


def test_heads() -> None:
    x = torch.randn(4, 6) * 5
    normed = Head(6, 3, layer_norm=True)
    expected = (x - x.mean(-1, keepdim=True)) / (x.var(-1, unbiased=False, keepdim=True) + 1e-5).sqrt()
    torch.testing.assert_close(normed.inputs(x), expected)
    white = Head(6, 3, l2=True)
    torch.testing.assert_close(white.inputs(x), x / (x.norm(dim=1, keepdim=True) + 1e-6))
    torch.testing.assert_close(Head(6, None)(x), x)
    assert unit(x.half()).dtype == torch.float32
    assert unit(torch.zeros(1, 4)).tolist() == [[0, 0, 0, 0]]
    for wrong in ({"dim": 0}, {"dim": None, "layer_norm": True}, {"dim": 3, "layer_norm": True, "l2": True}):
        with pytest.raises(ConfigError):
            Head(6, **wrong)  # type: ignore[arg-type]
