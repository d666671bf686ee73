"""PLUGIN_V3: the operator's reference function, called with the plugin's parsed fields."""

from __future__ import annotations

import torch
from torch import Tensor

from hybridge.artifact.errors import UnsupportedError
from hybridge.runtime.engines.tensorrt_network.layer_call import Kind, LayerCall
from hybridge.trt_plugins import torch_ops
from hybridge.trt_plugins.catalog import DENSE_VERSION, spec_of
from hybridge.trt_plugins.plugins.layer import state_inputs
from hybridge.trt_plugins.specs.state_ring import is_ring
from hybridge.trt_plugins.torch_ops.schema import OVERLOADS


def plugin(call: LayerCall) -> tuple[Tensor, ...]:
    """The outputs of the operator; a state that the plugin updates in place is written into its input's memory."""
    torch_ops.register()
    spec = spec_of(call["operator"], call["version"])
    operator = getattr(getattr(torch.ops.trt_edgellm, spec.name), OVERLOADS[spec.version])
    in_part = spec.version != DENSE_VERSION or is_ring(spec)
    if in_part and not call["aliased"] and state_inputs(spec):
        raise call.error("expected states updated in place, found separate: its kernels write parts of them")
    inputs = [_operator_bytes(call.optional(index)) for index in range(len(spec.inputs))]
    fields = spec.complete_attributes(call["fields"])
    try:
        found = operator(*inputs, *(fields[attribute.name] for attribute in spec.attributes))
    except UnsupportedError as error:
        raise call.error(str(error)) from error
    outputs = list(found if isinstance(found, tuple) else (found,))
    for index, (name, dtype) in enumerate(zip(call.layer.outputs, call.dtypes, strict=True)):
        if outputs[index].dtype is torch.uint8:
            outputs[index] = outputs[index].view(dtype)
        state = call.in_place.get(name)
        if state is not None:
            memory = call.input(call.layer.inputs.index(state))
            outputs[index] = memory if memory.is_meta else memory.copy_(outputs[index])
    return tuple(outputs)


def _operator_bytes(value: Tensor | None) -> Tensor | None:
    """Bytes of e4m3: int8 in a network, uint8 in an operator."""
    return value.view(torch.uint8) if value is not None and value.dtype is torch.int8 else value


PLUGIN_KIND = Kind(plugin)
