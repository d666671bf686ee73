"""Trace the decoder into an ONNX model: no weight is loaded, only shapes and types flow."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import onnx_ir as ir
import torch
from torch import nn

from hybridge.artifact.bindings import BATCH, BLOCK_SIZE, MAX_SEQ, NUM_BLOCKS, NUM_SLOTS, SEQ, GraphBindings
from hybridge.artifact.dtypes import DType
from hybridge.artifact.kv_dtypes import FP8_E4M3
from hybridge.artifact.paged import MAX_BLOCKS, NUM_LOGITS, PAGED, ROW_BOUNDS, ROWS, TOKENS
from hybridge.exporter.families.decoder_config import DecoderConfig
from hybridge.exporter.layers.decoder import Decoder
from hybridge.exporter.layers.paged_decoder import PagedDecoder
from hybridge.exporter.ops.table import translation_table
from hybridge.exporter.options import ExportOptions
from hybridge.exporter.trace.tracer import LEAST_EXTENT, Tracer, Unfilled, model_of
from hybridge.trt_plugins import torch_ops

TORCH_DTYPES = {
    DType.FLOAT32: torch.float32,
    DType.FLOAT16: torch.float16,
    DType.BFLOAT16: torch.bfloat16,
    DType.INT64: torch.int64,
    DType.INT32: torch.int32,
    DType.UINT8: torch.uint8,
}
# In the order of their extents while tracing: a packed step has one bound more than rows.
AXES = (BATCH, SEQ, MAX_SEQ, ROWS, ROW_BOUNDS, TOKENS, MAX_BLOCKS, NUM_LOGITS, NUM_BLOCKS, BLOCK_SIZE, NUM_SLOTS)


def trace_decoder(config: DecoderConfig, bindings: GraphBindings, dtype: DType, options: ExportOptions) -> ir.Model:
    """The ONNX model of ``config`` in compute type ``dtype``; initializers carry module names and no data."""
    return trace_module(lambda: _module(config, options), bindings, dtype)


def trace_module(module_of: Callable[[], nn.Module], bindings: GraphBindings, dtype: DType) -> ir.Model:
    """The ONNX model of the module that ``module_of`` makes, whose forward takes the inputs of ``bindings``.

    ExportError names an operator without translation.
    """
    torch_ops.register()
    with torch.inference_mode(), torch.device("meta"), _default_dtype(TORCH_DTYPES[dtype]):
        with Unfilled():
            module = module_of().eval()
        parameters = dict(module.named_parameters())
        extents = _extents({n for p in parameters.values() for n in p.shape} | _static(bindings))
        tracer = Tracer(translation_table(), {extent: axis for axis, extent in extents.items()})
        initializers = [tracer.bind(parameter, name) for name, parameter in parameters.items()]
        examples = [torch.empty(b.resolve(**extents), dtype=TORCH_DTYPES[b.dtype]) for b in bindings.inputs]
        inputs = [tracer.bind(*pair) for pair in zip(examples, (b.name for b in bindings.inputs), strict=True)]
        states = sum(b.is_state for b in bindings.inputs)
        leading = len(examples) - states
        with tracer:
            first, others = module(*examples[:leading], examples[leading:])
    outputs = [tracer.value(tensor) for tensor in (first, *others)]
    for value, binding in zip(outputs, bindings.outputs, strict=True):
        value.name = binding.name
    return model_of(inputs, outputs, tracer.nodes, initializers)


def _module(config: DecoderConfig, options: ExportOptions) -> Decoder:
    if options.layout == PAGED:
        return PagedDecoder(config, options.kv_dtype == FP8_E4M3)
    return Decoder(config, options.all_logits, options.head)


def _static(bindings: GraphBindings) -> set[int]:
    return {n for binding in (*bindings.inputs, *bindings.outputs) for n in binding.shape if isinstance(n, int)}


def _extents(static: set[int]) -> dict[str, int]:
    """The extent of each symbolic axis while tracing: no two are the same, and none is one of ``static``."""
    first = LEAST_EXTENT
    while not static.isdisjoint(range(first, first + len(AXES))):
        first += len(AXES)
    return {axis: first + index for index, axis in enumerate(AXES)}


@contextlib.contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
