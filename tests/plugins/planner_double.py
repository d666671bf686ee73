"""A planner and a device without a GPU, and calls of the operators for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import UnsupportedError
from hybridge.trt_plugins.catalog import spec_of
from hybridge.trt_plugins.kernels.call import CallPlan, DeviceTraits, OpCall
from hybridge.trt_plugins.plugins.fields import FieldValues
from hybridge.trt_plugins.plugins.layer import PluginLayer, layer_from_fields
from hybridge.trt_plugins.plugins.op_plugin import OpPlugin

ADA = DeviceTraits(capability=(8, 9), multiprocessors=128, shared_bytes=101376, l2_bytes=72 << 20)
SIZES = {"batch": 3, "time": 5, "heads": 4, "head_dim": 8, "groups": 2, "state_size": 16, "conv_dim": 24, "kernel": 4}


def plan_by_shape(call: OpCall, device: DeviceTraits) -> CallPlan:
    """Split short calls: the workspace shrinks with the tokens, and grows with the multiprocessors."""
    batch, time = call.inputs[0].shape[:2] if call.inputs[0] is not None else (0, 0)
    if time > 4096:
        raise UnsupportedError(f"expected at most 4096 tokens, found {time}: use shorter chunks")
    return CallPlan((), 256 * device.multiprocessors if time * batch < 64 else 0, name=f"{batch}x{time}")


@dataclass
class BoundDouble:
    """A bound plan that remembers its launches."""

    plan: CallPlan
    launches: list[tuple[Any, ...]] = field(default_factory=list)

    def launch(self, stream: int, inputs: Sequence[int], outputs: Sequence[int], workspace: int = 0) -> None:
        if stream == FAILING_STREAM:
            raise RuntimeError("the driver refuses")
        self.launches.append((stream, list(inputs), list(outputs), workspace))


FAILING_STREAM = 666


class DeviceDouble:
    """A device whose plans launch nothing. ``bound``: what it bound, in order."""

    def __init__(self) -> None:
        self.traits = ADA
        self.bound: list[BoundDouble] = []

    def bind(self, plan: CallPlan) -> Any:
        self.bound.append(BoundDouble(plan))
        return self.bound[-1]


def plugin_layer(op: str = "update_ssm_state", workspace: int = 1 << 20, **attributes: Any) -> PluginLayer:
    """A layer named layers.1.ssm, built for 8.6 and 8.9, that may use ``workspace`` bytes."""
    spec = spec_of(op)
    values = FieldValues(spec.complete_attributes(attributes), {"hybridge_capabilities": "8.6,8.9"})
    layer = layer_from_fields(spec, "layers.1.ssm", values)
    layer.workspace.nbytes = workspace
    return layer


def op_plugin(device: DeviceDouble, **layer: Any) -> OpPlugin:
    """A plugin of ``plugin_layer`` on ``device``."""
    return OpPlugin(plugin_layer(**layer), plan_by_shape, lambda: device)


def input_shapes(op: str = "update_ssm_state", **sizes: int) -> list[tuple[int, ...]]:
    """The shapes of every input, with time, from SIZES and ``sizes``."""
    known = {**SIZES, **sizes}
    return [tuple(d if isinstance(d, int) else known[d] for d in t.dims_for(True)) for t in spec_of(op).inputs]


def input_dtypes(
    op: str = "update_ssm_state", data: DType = DType.FLOAT16, other: DType = DType.FLOAT32
) -> list[DType]:
    """``data`` for every tensor of type T, ``other`` for other variables."""
    return [t.dtype if isinstance(t.dtype, DType) else data if t.dtype == "T" else other for t in spec_of(op).inputs]
