"""Which kernels run the experts of few tokens and the choice before them; needs no GPU."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import UnsupportedError
from hybridge.trt_plugins.kernels.call import Memory, PointerSource
from hybridge.trt_plugins.kernels.compiler import compile_kernel
from hybridge.trt_plugins.kernels.fused import routed_experts, top_k_softmax
from hybridge.trt_plugins.kernels.fused.routed_experts import ExpertsDecode
from hybridge.trt_plugins.kernels.fused.top_k_softmax import TopKSoftmax
from tests.support.kernel_calls import H200, ORIN

BASE = ExpertsDecode(
    1, 10, hidden=2048, intermediate=512, dtype=DType.BFLOAT16, activation="silu", gated=True, x_stride=2048
)


def test_two_launches_share_what_lies_between() -> None:
    plan = routed_experts.plan(BASE, H200)
    up, down = plan.launches
    assert (up.grid, down.grid) == ((64, 10, 1), (256, 1, 1)) and up.overlap and down.overlap
    assert plan.workspace_bytes == 10 * 512 * 4
    assert up.pointers["inner"] == down.pointers["inner"] == PointerSource(Memory.WORKSPACE)
    assert not routed_experts.plan(BASE, ORIN).launches[0].overlap


def test_one_token_never_waits_for_others() -> None:
    routes = [
        dict(routed_experts.plan(replace(BASE, tokens=tokens), H200).launches[0].source.defines)["ROUTES"]
        for tokens in (1, 2)
    ]
    assert routes == ["1", "4"]
    assert routed_experts.plan(replace(BASE, tokens=64, top_k=2), H200).launches[1].grid == (256, 2, 1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokens": 13}, "1 to 128 tokens times top_k, found 130; run expert by expert"),
        ({"hidden": 2052}, "multiples of 8, found 2052, 512, 2048"),
        ({"x_stride": 2050}, "multiples of 8"),
        ({"dtype": DType.INT32}, "found int32"),
        ({"activation": "tanh"}, "found tanh"),
    ],
)
def test_refusals(change: dict[str, object], message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        replace(BASE, **change)


@pytest.mark.parametrize(("experts", "items"), [(1, 1), (32, 1), (33, 2), (100, 4), (512, 16), (1024, 32)])
def test_a_warp_holds_the_logits_of_a_token(experts: int, items: int) -> None:
    (launch,) = top_k_softmax.plan(TopKSoftmax(9, experts, 1, True), H200).launches
    assert launch.grid == (3, 1, 1) and dict(launch.source.defines)["ITEMS"] == str(items)


@pytest.mark.parametrize(("experts", "top_k"), [(1025, 2), (64, 33), (4, 5), (4, 0)])
def test_choices_that_do_not_fit_a_warp_are_refused(experts: int, top_k: int) -> None:
    with pytest.raises(UnsupportedError, match=f"found {top_k} among {experts} for 3 tokens"):
        TopKSoftmax(3, experts, top_k, True)


def test_variants_compile() -> None:
    pytest.importorskip("cuda.core", reason="needs cuda-core and NVRTC (extra cuda)")
    for launch in routed_experts.plan(BASE, H200).launches:
        assert compile_kernel(launch.source, "sm_90a").report.problem is None
    (choice,) = top_k_softmax.plan(TopKSoftmax(1, 512, 10, True), H200).launches
    assert compile_kernel(choice.source, "sm_87").report.problem is None
