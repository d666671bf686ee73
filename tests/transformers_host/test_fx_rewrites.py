"""Rewrites of traced programs: values and states as the model's own operators give them, from the cheaper ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.fx import GraphModule

from hybridge.transformers_host.bound_program import bind_program
from tests.ops.oracle import relative_error

aten = torch.ops.aten
State = dict[str, torch.Tensor]
Forward = Callable[[State, State, State], torch.Tensor]


class Traced(nn.Module):
    def __init__(self, forward: Forward) -> None:
        super().__init__()
        self.function = forward

    def forward(self, weights: State, inputs: State, cache: State) -> torch.Tensor:
        return self.function(weights, inputs, cache)


def randn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def bound(forward: Forward, weights: State, inputs: State, cache: State) -> GraphModule:
    with torch.no_grad():
        program = torch.export.export(Traced(forward), (weights, inputs, cache))
    module = bind_program(program, weights)
    assert isinstance(module, GraphModule)
    return module


def check(forward: Forward, weights: State, inputs: State, cache: State) -> set[Any]:
    """Bind, run twice over continued states, compare with float64; the targets of the nodes that are left."""
    module = bound(forward, weights, inputs, cache)
    exact = [{name: value.double() for name, value in given.items()} for given in (weights, inputs, cache)]
    mine = {name: value.clone() for name, value in cache.items()}
    for _ in range(2):
        (found,) = module(*inputs.values(), *mine.values())
        assert relative_error(found.numpy(), forward(*exact).numpy()) < 1e-6
    for name, state in mine.items():
        assert relative_error(state.numpy(), exact[2][name].numpy()) < 1e-6
    return {node.target for node in module.graph.nodes if node.op == "call_function"}


def rms_norm(x: torch.Tensor, eps: float = 1e-5) -> torch.Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)


@pytest.mark.parametrize("scale", [1.0, 1e-4])
@pytest.mark.parametrize("zero_centred", [False, True])
def test_norm_before_its_weight(zero_centred: bool, scale: float) -> None:
    def forward(weights: State, inputs: State, cache: State) -> torch.Tensor:
        weight = weights["w"] + 1.0 if zero_centred else weights["w"]
        return weight * rms_norm(inputs["x"])

    left = check(forward, {"w": randn(37)}, {"x": scale * randn(1, 3, 37)}, {})
    assert left == {
        aten.linalg_vector_norm.default,
        aten.hypot.default,
        aten.div.Tensor,
        aten.mul.Tensor,
    }


def test_norm_of_groups_and_norm_without_a_weight() -> None:
    def forward(weights: State, inputs: State, cache: State) -> torch.Tensor:
        groups = rms_norm(inputs["x"].view(1, 1, 2, 12)).view(1, 1, 24)
        return weights["w"] * groups + rms_norm(inputs["x"], 0.1)

    assert aten.rsqrt.default not in check(forward, {"w": randn(24)}, {"x": randn(1, 1, 24)}, {})


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("last_only", [False, True])
def test_short_convolution(last_only: bool, bias: bool) -> None:
    def forward(weights: State, inputs: State, cache: State) -> torch.Tensor:
        window = torch.cat([cache["conv"], inputs["x"]], -1)
        cache["conv"].copy_(window[:, :, -4:])
        result = torch.conv1d(window, weights["w"], weights.get("b"), groups=10)
        return result[:, :, -1:] if last_only else result

    weights = {"w": randn(10, 1, 4), **({"b": randn(10)} if bias else {})}
    left = check(forward, weights, {"x": randn(1, 10, 1)}, {"conv": randn(1, 10, 4)})
    assert aten.conv1d.default not in left
    assert (aten.unfold.default in left) is not last_only


def ssm_step(weights: State, inputs: State, cache: State) -> torch.Tensor:
    """Mamba2's step as transformers writes it, with everything expanded to the shape of the state."""
    heads, size, width = 6, 4, 5
    dt = inputs["dt"][:, :, None].expand(1, heads, size)
    dt = torch.nn.functional.softplus(dt + weights["dt_bias"][:, None].expand(heads, size))
    decay = torch.exp(dt[..., None] * -torch.exp(weights["A_log"])[:, None, None].expand(heads, size, width))
    b = inputs["b"].view(1, 2, 1, width).expand(1, 2, 3, width).reshape(1, heads, 1, width)
    state = cache["state"] * decay + dt[..., None] * b * inputs["x"][..., None]
    cache["state"].copy_(state)
    return (state * b).sum(-1) + inputs["x"] * weights["D"][:, None].expand(heads, size)


SSM = (
    {"dt_bias": randn(6), "A_log": 0.1 * randn(6), "D": randn(6)},
    {"dt": randn(1, 6), "b": randn(2, 5), "x": randn(1, 6, 4)},
    {"state": randn(1, 6, 4, 5)},
)


def test_state_is_updated_where_it_lies() -> None:
    left = check(ssm_step, *SSM)
    assert {aten.mul_.Tensor, aten.addcmul_.default} <= left
    assert aten.copy_.default not in left


def test_the_step_computes_each_decay_once() -> None:
    module = bound(ssm_step, *SSM)
    shapes = [tuple(node.meta["val"].shape) for node in module.graph.nodes if node.target is aten.exp.default]
    assert shapes == [(1, 6, 1, 1)]


@pytest.mark.parametrize("read", ["before", "between", "after"])
def test_what_reads_the_old_state_reads_the_old_state(read: str) -> None:
    def forward(weights: State, inputs: State, cache: State) -> torch.Tensor:
        state = cache["state"]
        old = state * 2.0 if read == "before" else torch.zeros(())
        decayed = state * inputs["decay"]
        delta = inputs["v"] - (decayed * inputs["k"]).sum(-2)
        new = decayed + inputs["k"] * delta[:, None]
        late = decayed.sum() if read == "after" else decayed.view(-1)[0] if read == "between" else 0.0
        state.copy_(new)
        return new + old + late

    inputs = {"decay": torch.rand(3, 1, 1), "k": randn(3, 4, 1), "v": randn(3, 5)}
    check(forward, {}, inputs, {"state": randn(3, 4, 5)})


def test_delta_rule_updates_its_state_where_it_lies() -> None:
    def forward(weights: State, inputs: State, cache: State) -> torch.Tensor:
        k = inputs["k"].repeat_interleave(3, 1)
        decayed = cache["state"] * inputs["decay"]
        delta = inputs["v"] - (decayed * k).sum(-2)
        state = decayed + k * delta[:, :, None]
        cache["state"].copy_(state)
        return (state * k).sum(-2)

    inputs = {"decay": torch.rand(1, 6, 1, 1), "k": randn(1, 2, 4, 1), "v": randn(1, 6, 5)}
    left = check(forward, {}, inputs, {"state": randn(1, 6, 4, 5)})
    assert aten.addcmul_.default in left
    assert aten.repeat_interleave.self_int not in left


def test_keys_of_grouped_queries_are_not_repeated() -> None:
    def repeated(x: torch.Tensor) -> torch.Tensor:
        return x[:, :, None].expand(1, 2, 3, 9, 8).reshape(1, 6, 9, 8)

    def forward(weights: State, inputs: State, cache: State) -> torch.Tensor:
        k, v = repeated(inputs["k"]), repeated(inputs["v"])
        seen = torch.arange(9) < 7
        return torch.nn.functional.scaled_dot_product_attention(inputs["q"], k, v, seen[None, None, None])

    inputs = {"q": randn(1, 6, 1, 8), "k": randn(1, 2, 9, 8), "v": 2 * randn(1, 2, 9, 8)}
    assert aten.expand.default not in check(forward, {}, inputs, {})
