"""Operators of the domain ``trt_edgellm`` without packed rows: our CUDA kernels on a GPU, else their torch form."""

from __future__ import annotations

from collections.abc import Callable

import torch

from hybridge.artifact.errors import EngineError
from hybridge.runtime.engines.torch.kernels import KernelRunner
from hybridge.runtime.engines.torch.node_context import Builder, NodeContext, Run
from hybridge.runtime.engines.torch.ops import packed, paged, state_8bit
from hybridge.runtime.engines.torch.ops.packed_kernel import PackedKernel
from hybridge.trt_plugins import torch_ops
from hybridge.trt_plugins.catalog import DENSE_VERSION, OPS, PACKED_OPS, spec_of
from hybridge.trt_plugins.kernels import catalog
from hybridge.trt_plugins.spec import AttributeValue, OpSpec
from hybridge.trt_plugins.specs.packed import has_rows
from hybridge.trt_plugins.specs.speculative import SPECULATIVE_VERSION
from hybridge.trt_plugins.specs.state_8bit import is_8bit
from hybridge.trt_plugins.specs.state_forms import base_name
from hybridge.trt_plugins.specs.state_ring import is_ring


def _run(context: NodeContext) -> Run:
    spec = spec_of(context.op_type, context.version)
    if spec.version != DENSE_VERSION:
        builder = _PACKED.get(spec.name)
        if builder is None or spec.version > SPECULATIVE_VERSION:
            raise EngineError(
                f"the torch engine does not know {spec.qualified_name} of version {spec.version}: "
                "use `engine='onnxruntime'`"
            )
        return builder(context, spec)
    attributes = spec.complete_attributes(context.attributes.rest())
    portable, kernels = _portable(spec, attributes), context.kernels
    if kernels is None or not (is_8bit(spec) or spec.name in catalog.operators()):
        return portable
    in_place = [context.is_in_place(index, spec.output_source(output)) for index, output in enumerate(spec.outputs)]
    if is_8bit(spec):
        wide = spec_of(base_name(spec.name))
        over_floats = _KernelCall(wide, attributes, kernels, [False, True], _portable(wide, attributes))
        portable = state_8bit.dense_call(spec, over_floats)
    return _KernelCall(spec, attributes, kernels, in_place, portable, writes_parts=is_ring(spec))


def _portable(spec: OpSpec, attributes: dict[str, AttributeValue]) -> Run:
    torch_ops.register()
    operator = getattr(getattr(torch.ops, spec.domain), spec.name)
    values = tuple(attributes.values())
    return lambda *tensors: operator(*_complete(spec, tensors), *values)


def _complete(spec: OpSpec, tensors: tuple[torch.Tensor | None, ...]) -> tuple[torch.Tensor | None, ...]:
    return (*tensors, *(None for _ in range(len(spec.inputs) - len(tensors))))


class _KernelCall:
    """One operator with CUDA kernels. Sizes that they refuse run in the torch form.

    writes_parts: the kernels change parts of the states where these are.
    """

    def __init__(
        self,
        spec: OpSpec,
        attributes: dict[str, AttributeValue],
        kernels: KernelRunner,
        in_place: list[bool],
        portable: Callable[..., tuple[torch.Tensor, ...]],
        writes_parts: bool = False,
    ) -> None:
        self._writes_parts, self._spec, self._portable = writes_parts, spec, portable
        self._kernel = PackedKernel(spec, attributes, kernels)
        self._sources = [
            (spec.output_source(output), here) for output, here in zip(spec.outputs, in_place, strict=True)
        ]

    def __call__(self, *tensors: torch.Tensor | None) -> tuple[torch.Tensor, ...]:
        inputs = list(_complete(self._spec, tensors))
        outputs = [self._output(inputs[source], here) for source, here in self._sources]
        if self._writes_parts:
            for (source, here), output in zip(self._sources[1:], outputs[1:], strict=True):
                before = inputs[source]
                inputs[source] = output if here or before is None else output.copy_(before)
        return tuple(outputs) if self._kernel.launch(inputs, outputs) else self._portable(*inputs)

    def _output(self, source: torch.Tensor | None, here: bool) -> torch.Tensor:
        assert source is not None
        return source if here else torch.empty(source.shape, dtype=source.dtype, device=source.device)


_PACKED: dict[str, Callable[[NodeContext, OpSpec], Run]] = {
    "reshape_and_cache": paged.reshape_and_cache,
    "paged_attention": paged.paged_attention,
    "reshape_and_cache_fp8": paged.reshape_and_cache,
    "paged_attention_fp8": paged.paged_attention,
    **{
        name: state_8bit.packed_operator if is_8bit(spec) else packed.packed_operator
        for name, spec in PACKED_OPS.items()
        if name in OPS and has_rows(spec)
    },
}
ROWS: dict[str, Builder] = {name: _run for name in PACKED_OPS}
