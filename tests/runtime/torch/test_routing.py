"""The experts of the torch engine, in both of its forms, against a loop over tokens and experts in float64."""

from __future__ import annotations

import pytest
import torch

from runtime.engines.torch.ops.routing import RoutedExperts
from tests.ops.expert_cases import expert_case, expert_loop
from tests.ops.oracle import relative_error


@pytest.mark.parametrize(("activation", "gated"), [("silu", 1), ("relu2", 0), ("gelu", 1)])
@pytest.mark.parametrize("time", [1, 33])
@pytest.mark.parametrize("form", ["gathered", "by_expert"])
def test_both_forms(form: str, time: int, activation: str, gated: int, monkeypatch: pytest.MonkeyPatch) -> None:
    case = expert_case(time=time, gated=gated)
    x, ids, weights, up, down = (torch.from_numpy(array) for array in case.arrays().values())
    experts = RoutedExperts(activation, bool(gated))
    monkeypatch.setattr(experts, "by_expert", getattr(experts, form))
    y = experts(x.float(), ids, weights.float(), up.float(), down.float())
    assert relative_error(y.numpy(), expert_loop(case, activation, gated)) < 1e-6


@pytest.mark.gpu
@pytest.mark.parametrize("time", [1, 40])
def test_on_a_gpu(time: int) -> None:
    case = expert_case(time=time)
    arrays = (torch.from_numpy(array).cuda() for array in case.arrays().values())
    x, ids, weights, up, down = arrays
    y = RoutedExperts("silu", True)(x.bfloat16(), ids, weights.float(), up.bfloat16(), down.bfloat16())
    assert relative_error(y.double().cpu().numpy(), expert_loop(case, "silu", 1)) < 3e-2
