"""The experts of the torch engine, in each of its forms, against a loop over tokens and experts in float64."""

from __future__ import annotations

import pytest
import torch

from hybridge.runtime.engines.torch.ops.routing import ExpertMatrices, RoutedExperts
from hybridge.trt_plugins.specs.routed_experts import ExpertActivation
from tests.ops.expert_cases import CLAMPED, expert_case, expert_loop
from tests.ops.oracle import relative_error


@pytest.mark.parametrize(("activation", "gated"), [("silu", 1), ("relu2", 0), ("gelu", 1)])
@pytest.mark.parametrize("time", [1, 33])
@pytest.mark.parametrize("form", ["gathered", "grouped", "by_expert"])
def test_each_form(form: str, time: int, activation: str, gated: int, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"hidden": 12, "intermediate": 8} if form == "grouped" else {}  # that form is for rows of whole 16 bytes
    case = expert_case(time=time, gated=gated, **sizes)
    x, ids, weights, up, down = (torch.from_numpy(array) for array in case.arrays().values())
    experts = RoutedExperts(ExpertActivation(activation, bool(gated)))
    if form == "grouped" and not hasattr(torch.nn.functional, "grouped_mm"):
        pytest.skip("needs torch 2.10: grouped_mm")
    monkeypatch.setattr(experts, "by_expert", getattr(experts, form))
    y = experts(x.float(), ids, weights.float(), ExpertMatrices(up.float(), down.float()))
    assert relative_error(y.numpy(), expert_loop(case, activation, gated)) < 1e-6


@pytest.mark.parametrize("form", ["gathered", "by_expert"])
def test_biases_and_a_clamped_gate(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = expert_case(time=5, biased=True)
    x, ids, weights, *rest = (torch.from_numpy(array) for array in case.arrays().values())
    up, down, *biases = (tensor.float() for tensor in rest)
    experts = RoutedExperts(ExpertActivation("silu", True, **CLAMPED))
    monkeypatch.setattr(experts, "by_expert", getattr(experts, form))
    y = experts(x.float(), ids, weights.float(), ExpertMatrices(up, down, (biases[0], biases[1])))
    assert relative_error(y.numpy(), expert_loop(case, "silu", 1, clamped=True)) < 1e-6


@pytest.mark.gpu
@pytest.mark.parametrize("time", [1, 40])
def test_on_a_gpu(time: int) -> None:
    case = expert_case(time=time)
    arrays = (torch.from_numpy(array).cuda() for array in case.arrays().values())
    x, ids, weights, up, down = arrays
    y = RoutedExperts(ExpertActivation("silu", True))(
        x.bfloat16(), ids, weights.float(), ExpertMatrices(up.bfloat16(), down.bfloat16())
    )
    assert relative_error(y.double().cpu().numpy(), expert_loop(case, "silu", 1)) < 3e-2


@pytest.mark.gpu
@pytest.mark.skipif(
    not hasattr(torch.nn.functional, "grouped_mm")
    or not torch.cuda.is_available()
    or torch.cuda.get_device_capability() not in ((9, 0), (10, 0)),
    reason="needs torch 2.10 and a GPU of compute capability 9.0 or 10.0: grouped_mm without the host",
)
@pytest.mark.parametrize("favourite", [False, True])
def test_prompts_need_nothing_from_the_host(favourite: bool) -> None:
    """66 tokens and 40 experts, so that some have no token."""
    case = expert_case(time=33, experts=40, top_k=3, hidden=72, intermediate=40, favourite=favourite)
    x, ids, weights, up, down = (torch.from_numpy(array).cuda() for array in case.arrays().values())
    inputs = x.bfloat16(), ids, weights.float(), ExpertMatrices(up.bfloat16(), down.bfloat16())
    experts = RoutedExperts(ExpertActivation("silu", True))
    experts(*inputs)  # the first call may load what the others use
    torch.cuda.set_sync_debug_mode("error")
    try:
        y = experts(*inputs)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert relative_error(y.double().cpu().numpy(), expert_loop(case, "silu", 1)) < 3e-2
