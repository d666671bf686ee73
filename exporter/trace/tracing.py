"""Trace the decoder under FakeTensorMode into an ONNX model: no weight is loaded, only shapes and types flow."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping

import onnx_ir as ir
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import Dim

from hybridge.artifact.bindings import BATCH, BLOCK_SIZE, MAX_SEQ, NUM_BLOCKS, NUM_SLOTS, SEQ, Binding, GraphBindings
from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import ExportError
from hybridge.artifact.kv_dtypes import FP8_E4M3
from hybridge.artifact.paged import MAX_BLOCKS, NUM_LOGITS, PAGED, ROW_BOUNDS, ROWS, TOKENS
from hybridge.exporter.families.decoder_config import DecoderConfig
from hybridge.exporter.layers.decoder import Decoder
from hybridge.exporter.layers.paged_decoder import PagedDecoder
from hybridge.exporter.ops.table import translation_table
from hybridge.exporter.options import ExportOptions
from hybridge.exporter.trace.lean_export import lean_passes, lean_tracing, undecomposed
from hybridge.exporter.trace.quiet import quiet
from hybridge.trt_plugins import torch_ops

OPSET = 24
LOGGERS = ("torch.onnx", "torch.export", "onnxscript", "onnx_ir")
TORCH_DTYPES = {
    DType.FLOAT32: torch.float32,
    DType.FLOAT16: torch.float16,
    DType.BFLOAT16: torch.bfloat16,
    DType.INT64: torch.int64,
    DType.INT32: torch.int32,
    DType.UINT8: torch.uint8,
}
# Sizes used while tracing. Those of one layout differ from each other and from one, so that no axis is specialised.
TRACE_SIZES = {
    **{BATCH: 3, SEQ: 5, MAX_SEQ: 17},
    **{TOKENS: 6, ROWS: 3, ROW_BOUNDS: 4, MAX_BLOCKS: 7, NUM_LOGITS: 2, NUM_BLOCKS: 11, BLOCK_SIZE: 8, NUM_SLOTS: 13},
}


def trace_decoder(config: DecoderConfig, bindings: GraphBindings, dtype: DType, options: ExportOptions) -> ir.Model:
    """The ONNX model of ``config`` in compute type ``dtype``; initializers carry module names and no data."""
    return trace_module(lambda: _module(config, options), bindings, dtype)


def trace_module(module_of: Callable[[], nn.Module], bindings: GraphBindings, dtype: DType) -> ir.Model:
    """The ONNX model of the module that ``module_of`` makes, whose forward takes the inputs of ``bindings``."""
    torch_ops.register()
    with lean_tracing(), FakeTensorMode(), _default_dtype(TORCH_DTYPES[dtype]), torch.no_grad(), quiet(*LOGGERS):
        module = module_of().eval()
        states = [b for b in bindings.inputs if b.is_state]
        leading = [b for b in bindings.inputs if not b.is_state]
        args = (*[_example(b) for b in leading], [_example(b) for b in states])
        axes = {axis for binding in bindings.inputs for axis in binding.shape if isinstance(axis, str)}
        dims = {name: Dim(name, min=1) for name in sorted(axes)}
        shapes = (*[_dynamic(b, dims) for b in leading], [_dynamic(b, dims) for b in states])
        program = torch.export.export(module, args, dynamic_shapes=shapes, strict=False)
        table = translation_table()
        with lean_passes(program, table):
            exported = torch.onnx.export(
                undecomposed(program),
                dynamo=True,
                custom_translation_table=table,
                opset_version=OPSET,
                input_names=[b.name for b in bindings.inputs],
                output_names=[b.name for b in bindings.outputs],
                optimize=False,
                verbose=False,
            )
    if exported is None:
        raise ExportError("torch.onnx returned no model")
    return exported.model


def _module(config: DecoderConfig, options: ExportOptions) -> Decoder:
    if options.layout == PAGED:
        return PagedDecoder(config, options.kv_dtype == FP8_E4M3)
    return Decoder(config, options.all_logits, options.head)


def _example(binding: Binding) -> torch.Tensor:
    return torch.empty(binding.resolve(**TRACE_SIZES), dtype=TORCH_DTYPES[binding.dtype])


def _dynamic(binding: Binding, dims: Mapping[str, object]) -> dict[int, object]:
    return {axis: dims[name] for axis, name in enumerate(binding.shape) if isinstance(name, str)}


@contextlib.contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
