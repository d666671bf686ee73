"""The plugin without TensorRT: types, workspaces, launches, and which of them contexts share."""

from __future__ import annotations

import pytest

from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import EngineError, UnsupportedError
from hybridge.trt_plugins.kernels.layout import TensorLayout
from hybridge.trt_plugins.plugins.calls import largest_workspace
from hybridge.trt_plugins.plugins.op_plugin import READY_SHAPES, OpPlugin
from tests.plugins.planner_double import (
    ADA,
    SIZES,
    DeviceDouble,
    input_dtypes,
    input_shapes,
    op_plugin,
    plan_by_shape,
)

OPS = ["causal_conv1d", "update_ssm_state"]
F16, BF16, F32, I32 = DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32, DType.INT32


def prepare(plugin: OpPlugin, **sizes: int) -> None:
    """Prepare for SIZES and ``sizes``."""
    spec = plugin.layer.spec
    layouts = [
        TensorLayout.contiguous(dtype, shape)
        for dtype, shape in zip(input_dtypes(spec.name), input_shapes(spec.name, **sizes), strict=True)
    ]
    plugin.prepare(layouts, [layouts[spec.output_source(output)] for output in spec.outputs])


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("data", [F16, BF16, F32])
def test_outputs_have_the_types_of_their_sources(op: str, data: DType) -> None:
    plugin = op_plugin(DeviceDouble(), op=op)
    state = F32 if op == "update_ssm_state" else data
    assert plugin.output_dtypes(input_dtypes(op, data)) == [data, state]


@pytest.mark.parametrize(
    ("position", "dtype", "supported"),
    [
        (0, F16, True),
        (0, I32, False),
        (0, DType.INT8, False),
        (0, None, False),
        (1, F32, True),
        (1, F16, False),  # A
        (2, F16, True),
        (2, BF16, False),  # B differs from x
        (4, F32, True),
        (4, F16, True),
        (4, BF16, False),  # D: float32 or the type of x
        (7, F32, True),
        (7, F16, True),
        (7, BF16, False),  # state
        (8, I32, True),
        (8, DType.INT64, False),
        (9, F16, True),
        (9, F32, False),  # y is like x
        (10, F32, True),
        (10, F16, False),  # state_out is like state
    ],
)
def test_types_of_the_state_update(position: int, dtype: DType, supported: bool) -> None:
    offered: list[DType | None] = [*input_dtypes(), F16, F32]
    offered[position] = dtype
    assert op_plugin(DeviceDouble()).supports(position, offered) is supported


def test_the_smallest_call_may_need_the_largest_workspace() -> None:
    """The planner double splits short calls only: the largest shape alone would ask for nothing."""
    plugin = op_plugin(DeviceDouble(), workspace=0)
    calls = plugin.call_range(input_dtypes(), input_shapes(batch=1, time=1), input_shapes(batch=8, time=512))
    largest = calls.call({**SIZES, "batch": 8, "time": 512})
    assert plan_by_shape(largest, ADA).workspace_bytes == 0
    assert plugin.workspace_bytes(calls) == plugin.layer.workspace.nbytes == 256 * 192
    assert plugin.clone().layer.workspace.nbytes == 256 * 192


def test_sizes_that_a_profile_admits_are_tried() -> None:
    plugin = op_plugin(DeviceDouble())
    calls = plugin.call_range(input_dtypes(), input_shapes(batch=1, time=3), input_shapes(batch=3, time=40))
    tried = {call.inputs[0].shape[:2] for call in calls.calls() if call.inputs[0] is not None}
    assert tried == {(batch, time) for batch in (1, 2, 3) for time in (3, 4, 8, 16, 32, 40)}


def test_tokens_beyond_the_kernels_are_refused() -> None:
    plugin = op_plugin(DeviceDouble())
    calls = plugin.call_range(input_dtypes(), input_shapes(time=1), input_shapes(time=5000))
    with pytest.raises(UnsupportedError, match="at most 4096 tokens, found 5000"):
        plugin.workspace_bytes(calls)


def test_a_gpu_without_kernels_is_refused() -> None:
    calls = op_plugin(DeviceDouble()).call_range(input_dtypes(), input_shapes(), input_shapes())
    with pytest.raises(UnsupportedError, match=r"8\.0 or higher, found 7\.5"):
        largest_workspace(calls, ("8.6", "7.5"), plan_by_shape)


def test_contradicting_shapes_are_refused() -> None:
    shapes = input_shapes()
    shapes[7] = (3, 4, 8, 24)
    with pytest.raises(UnsupportedError, match=r"state of shape \[3, 4, 8, 16\], found \[3, 4, 8, 24\]"):
        op_plugin(DeviceDouble()).call_range(input_dtypes(), shapes, shapes)


@pytest.mark.parametrize("op", OPS)
def test_shapes_are_planned_once(op: str) -> None:
    device = DeviceDouble()
    plugin = op_plugin(device, op=op)
    for time in (5, 1, 5, 1):
        prepare(plugin, time=time)
        assert plugin.bound is not None and plugin.bound.plan.name == f"3x{time}"
    assert [bound.plan.name for bound in device.bound] == ["3x5", "3x1"]


def test_ready_shapes_are_bounded() -> None:
    device = DeviceDouble()
    plugin = op_plugin(device)
    for time in range(1, READY_SHAPES + 3):
        prepare(plugin, time=time)
    prepare(plugin, time=READY_SHAPES + 2)
    assert len(device.bound) == READY_SHAPES + 2
    prepare(plugin, time=1)
    assert len(device.bound) == READY_SHAPES + 3


def test_contexts_do_not_share_launches() -> None:
    device = DeviceDouble()
    one = op_plugin(device)
    other = one.clone()
    prepare(one)
    assert other.bound is None
    prepare(other)
    assert one.bound is not other.bound
    assert one.layer is other.layer


def test_a_plan_beyond_the_workspace_is_refused() -> None:
    with pytest.raises(EngineError, match=r"at most 256 bytes of workspace.* found 32768: build"):
        prepare(op_plugin(DeviceDouble(), workspace=256))


def test_shapes_are_named() -> None:
    plugin = op_plugin(DeviceDouble(), op="causal_conv1d")
    assert plugin.shapes_text() == ""
    prepare(plugin)
    expected = "x [3, 5, 24], weight [24, 1, 4], bias [24], conv_state [3, 24, 4], context_lengths [3]"
    assert plugin.shapes_text() == expected
