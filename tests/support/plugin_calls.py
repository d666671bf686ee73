"""Plugins called as TensorRT calls them, with torch tensors on the GPU, and the float64 reference of the call."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from hybridge.artifact.dtypes import DType
from hybridge.trt_plugins.catalog import spec_of
from hybridge.trt_plugins.kernels.device import KernelDevice
from hybridge.trt_plugins.plugins.fields import CAPABILITIES, make_fields
from hybridge.trt_plugins.plugins.layer import state_inputs
from hybridge.trt_plugins.plugins.registration import PluginRegistration
from hybridge.trt_plugins.reference.packed import packed_reference
from hybridge.trt_plugins.reference.speculative import speculative_reference
from hybridge.trt_plugins.spec import OpSpec
from hybridge.trt_plugins.specs.packed import NUM_SLOTS, QUERY_START_LOC, ROW_BOUNDS, STATE_INDICES, TOKENS, is_pool
from hybridge.trt_plugins.specs.speculative import NUM_ACCEPTED_TOKENS, is_speculative
from tests.plugins.stand_in import dynamic_desc, tensor_desc

NAN = float("nan")


@dataclass
class PluginCall:
    """One call: tensors in the order of the spec, fresh outputs and a workspace full of NaN.

    in place: the states of ``outputs`` are those of ``inputs``.
    """

    spec: OpSpec
    attributes: dict[str, Any]
    inputs: list[torch.Tensor]
    outputs: list[torch.Tensor]
    workspace: torch.Tensor

    def descs(self, trt: Any) -> tuple[list[Any], list[Any]]:
        """``trt.PluginTensorDesc`` of inputs and outputs."""

        def described(tensors: Sequence[torch.Tensor]) -> list[Any]:
            return [tensor_desc(trt, dtype_of(tensor), tuple(tensor.shape)) for tensor in tensors]

        return described(self.inputs), described(self.outputs)

    def addresses(self) -> tuple[list[int], list[int], int]:
        """Inputs, outputs and workspace, as TensorRT passes them."""
        inputs, outputs = ([tensor.data_ptr() for tensor in tensors] for tensors in (self.inputs, self.outputs))
        return inputs, outputs, self.workspace.data_ptr()

    def reference(self) -> tuple[torch.Tensor, ...]:
        """The outputs in float64; to be called before a call in place."""
        dense = getattr(importlib.import_module(f"hybridge.trt_plugins.reference.{self.spec.name}"), self.spec.name)
        wide = [tensor.double() if tensor.is_floating_point() else tensor for tensor in self.inputs]
        if QUERY_START_LOC not in self.spec.inputs:
            return dense(*wide, **self.attributes)
        form = speculative_reference if is_speculative(self.spec) else packed_reference
        return form(self.spec, dense)(*wide, *self.attributes.values())


def plugin_call(
    op: str,
    sizes: Mapping[str, int],
    data: torch.dtype,
    lengths: Sequence[int],
    attributes: Mapping[str, Any] | None = None,
    in_place: bool = False,
    workspace_bytes: int = 0,
) -> PluginCall:
    """Random inputs of ``op``: ``data`` for its type T, float32 for other variables. ``sizes``: every dim."""
    spec = spec_of(op)
    inputs = []
    for tensor in spec.inputs:
        shape = tuple(dim if isinstance(dim, int) else sizes[dim] for dim in tensor.dims_for(True))
        if tensor.dtype is DType.INT32:
            inputs.append(torch.tensor(lengths, dtype=torch.int32, device="cuda"))
        else:
            inputs.append(_values(tensor.name, shape).to(data if tensor.dtype == "T" else torch.float32))
    outputs = [torch.full_like(inputs[spec.output_source(output)], NAN) for output in spec.outputs]
    if in_place:
        for output_index, input_index in state_inputs(spec).items():
            outputs[output_index] = inputs[input_index]
    workspace = torch.full((workspace_bytes // 4 + 1,), NAN, device="cuda")
    return PluginCall(spec, spec.complete_attributes(attributes or {}), inputs, outputs, workspace)


def packed_plugin_call(
    spec: OpSpec,
    sizes: Mapping[str, int],
    data: torch.dtype,
    counts: Sequence[int],
    slots: torch.Tensor,
    accepted: Sequence[int],
    attributes: Mapping[str, Any],
) -> PluginCall:
    """Rows of ``counts`` tokens whose states have ``slots`` [rows] or [rows, draft_slots], updated in place.

    What no row has is NaN in the pools. Types as in ``plugin_call``.
    """
    bounds = torch.tensor([0, *counts]).cumsum(0).to(torch.int32)
    about = {
        QUERY_START_LOC.name: bounds,
        STATE_INDICES.name: slots.to(torch.int32),
        NUM_ACCEPTED_TOKENS.name: torch.tensor(accepted, dtype=torch.int32),
    }
    known = {**sizes, TOKENS: sum(counts), NUM_SLOTS: int(slots.max()) + 3}
    inputs = []
    for tensor in spec.inputs:
        if tensor.name in about:
            inputs.append(about[tensor.name].cuda())
            continue
        shape = tuple(dim if isinstance(dim, int) else known[dim] for dim in tensor.dims_for(True))
        values = _values(tensor.name, shape).to(data if tensor.dtype == "T" else torch.float32)
        if is_pool(tensor):
            free = torch.ones(shape[0], dtype=torch.bool)
            free[slots[slots >= 0].long()] = False
            values[free.cuda()] = NAN
        inputs.append(values)
    outputs = [torch.full_like(inputs[spec.output_source(output)], NAN) for output in spec.outputs]
    for output_index, input_index in state_inputs(spec).items():
        outputs[output_index] = inputs[input_index]
    workspace = torch.full((1,), NAN, device="cuda")
    return PluginCall(spec, spec.complete_attributes(attributes), inputs, outputs, workspace)


def created_plugin(trt: Any, registration: PluginRegistration, call: PluginCall, most: Mapping[str, int]) -> Any:
    """A plugin made, configured and attached as TensorRT does, for calls of one row and token up to ``most`` by dim."""
    major, minor = KernelDevice.current().traits.capability
    values = {**call.attributes, CAPABILITIES: f"{major}.{minor}"}
    fields = make_fields(trt, call.spec, values)
    creator = registration.creators[call.spec.name, call.spec.version]
    plugin = creator.create_plugin("layers.0.mixer", trt.PluginFieldCollection(fields), trt.TensorRTPhase.BUILD)
    ranges = []
    for tensor, value in zip(call.spec.inputs, call.inputs, strict=True):
        least, largest = list(value.shape), list(value.shape)
        for axis, dim in enumerate(tensor.dims_for(True)):
            if dim in most:
                least[axis], largest[axis] = 1 + (dim == ROW_BOUNDS), most[str(dim)]
        ranges.append(dynamic_desc(trt, dtype_of(value), tuple(least), tuple(largest)))
    plugin.configure_plugin(ranges, [])
    nbytes = plugin.get_workspace_size(ranges, [])
    call.workspace = torch.full((nbytes // 4 + 1,), NAN, device="cuda")
    serialized = plugin.get_fields_to_serialize()
    return creator.create_plugin("", serialized, trt.TensorRTPhase.RUNTIME).attach_to_context(None)


def dtype_of(tensor: torch.Tensor) -> DType:
    """Its element type."""
    return DType(str(tensor.dtype).removeprefix("torch."))


def _values(name: str, shape: tuple[int, ...]) -> torch.Tensor:
    values = torch.randn(*shape, device="cuda")
    if name in ("A", "g"):
        return -values.abs() - 0.5
    if name == "beta":
        return values.sigmoid()
    return values - 2.0 if name in ("dt", "dt_bias") else values
