"""Plugins of a network called as an engine calls them: by their own ``enqueue``, on device memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from hybridge.artifact.dtypes import DType
from hybridge.runtime.engines.tensorrt_network.layer_call import Kind, LayerCall
from hybridge.runtime.engines.tensorrt_network.plugins import PLUGIN_KIND, plugin
from hybridge.trt_plugins.build.job import BuildJob
from hybridge.trt_plugins.build.tensorrt_library import TensorRTLibrary
from hybridge.trt_plugins.catalog import spec_of
from hybridge.trt_plugins.plugins.data_types import trt_from_dtype
from hybridge.trt_plugins.plugins.fields import ALIASED, CAPABILITIES, make_fields
from hybridge.trt_plugins.plugins.layer import state_inputs
from hybridge.trt_plugins.plugins.registration import PluginRegistration, register_plugins
from hybridge.trt_plugins.spec import OpSpec

_Shapes = tuple[tuple[int, ...], ...]


def plugin_kind(job: BuildJob) -> Kind:
    """The runner of the plugins of ``job``'s network: with a CUDA GPU, which needs the extra `cuda`, the plugins
    themselves; else the operators' reference code."""
    if not job.plugin_nodes or not torch.cuda.is_available():
        return PLUGIN_KIND
    trt = TensorRTLibrary(job.library).trt
    major, minor = torch.cuda.get_device_capability()
    return EnqueuedPlugins(trt, register_plugins(trt), torch.device("cuda"), f"{major}.{minor}").kind


class EnqueuedPlugins:
    """Makes, configures, serialises and creates again each layer's plugin for every new set of shapes, as a build and
    an engine do."""

    def __init__(self, trt: Any, registration: PluginRegistration, device: torch.device, capability: str) -> None:
        """``trt``: the TensorRT module of ``registration``. capability: of ``device``, such as "8.9"."""
        self._trt, self._registration, self._device, self._capability = trt, registration, device, capability
        # Plugins that are attached to a context, with bytes of workspace.
        self._attached: dict[tuple[str, _Shapes], tuple[Any, int]] = {}

    @property
    def kind(self) -> Kind:
        """For ``NetworkInterpreter``."""
        return Kind(self._compute)

    def _compute(self, call: LayerCall) -> tuple[Tensor, ...]:
        """The outputs of a plugin layer; a state that it updates in place is copied back into its input's memory."""
        values = [call.input(index) for index in range(len(call.inputs))]
        if any(value.is_meta for value in values):
            return plugin(call)
        spec = spec_of(call["operator"], call["version"])
        inputs = [value.to(self._device, copy=True).contiguous() for value in values]
        outputs = self._outputs(call, spec, inputs)
        with self._registration.errors.raised():
            attached, nbytes = self._plugin(call, spec, inputs, outputs)
            workspace = torch.full((max(1, nbytes),), 0xFF, dtype=torch.uint8, device=self._device)
            descs = [[self._desc(tensor) for tensor in tensors] for tensors in (inputs, outputs)]
            attached.on_shape_change(*descs)
            addresses = [[tensor.data_ptr() for tensor in tensors] for tensors in (inputs, outputs)]
            attached.enqueue(*descs, *addresses, workspace.data_ptr(), self._stream())
        found = []
        for index, (name, output) in enumerate(zip(call.layer.outputs, outputs, strict=True)):
            host, state = output.cpu().view(call.dtypes[index]), call.in_place.get(name)
            found.append(host if state is None else call.input(call.layer.inputs.index(state)).copy_(host))
        return tuple(found)

    def _outputs(self, call: LayerCall, spec: OpSpec, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Memory for the outputs: that of the state where the plugin declares so, else fresh and full of NaN."""
        aliased = state_inputs(spec) if call["aliased"] else {}
        found = []
        for index, output in enumerate(spec.outputs):
            source = inputs[spec.output_source(output)]
            fresh = torch.empty_like(source)
            fresh.view(-1).view(torch.uint8).fill_(0xFF)
            found.append(inputs[aliased[index]] if index in aliased else fresh)
        return found

    def _plugin(
        self, call: LayerCall, spec: OpSpec, inputs: Sequence[Tensor], outputs: Sequence[Tensor]
    ) -> tuple[Any, int]:
        key = call.layer.name, tuple(tuple(value.shape) for value in inputs)
        if key not in self._attached:
            creator, trt = self._registration.creators[spec.name, spec.version], self._trt
            fields = {**call["fields"], CAPABILITIES: self._capability, ALIASED: int(call["aliased"])}
            # A collection holds pointers into its fields.
            made = make_fields(trt, spec, fields)
            built = creator.create_plugin(call.layer.name, trt.PluginFieldCollection(made), trt.TensorRTPhase.BUILD)
            ranges = [self._range(tensor) for tensor in (*inputs, *outputs)]
            for position in range(len(ranges)):
                if not built.supports_format_combination(position, ranges, len(inputs)):
                    raise call.error(f"expected a type that the plugin takes, found tensor {position} of another")
            given, results = ranges[: len(inputs)], ranges[len(inputs) :]
            built.configure_plugin(given, results)
            nbytes = built.get_workspace_size(given, results)
            again = creator.create_plugin("", built.get_fields_to_serialize(), trt.TensorRTPhase.RUNTIME)
            self._attached[key] = again.attach_to_context(None), nbytes
        return self._attached[key]

    def _desc(self, tensor: Tensor) -> Any:
        """A ``trt.PluginTensorDesc``, linear."""
        desc = self._trt.PluginTensorDesc()
        dtype = DType(str(tensor.dtype).removeprefix("torch."))
        desc.dims, desc.type = tuple(tensor.shape), trt_from_dtype(self._trt, dtype)
        desc.format = self._trt.TensorFormat.LINEAR
        return desc

    def _range(self, tensor: Tensor) -> Any:
        """A ``trt.DynamicPluginTensorDesc`` whose only shape is this."""
        dynamic = self._trt.DynamicPluginTensorDesc()
        dynamic.desc = self._desc(tensor)
        dynamic.min = dynamic.opt = dynamic.max = tuple(tensor.shape)
        return dynamic

    def _stream(self) -> int:
        return torch.cuda.current_stream().cuda_stream if self._device.type == "cuda" else 0
