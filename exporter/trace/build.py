"""Builds the complete ModelProto: traced, finished, with operator functions, checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import onnx
import onnx_ir as ir

from hybridge.artifact.config import RuntimeConfig
from hybridge.artifact.dtypes import DType
from hybridge.artifact.kv_dtypes import FP8_E4M3
from hybridge.artifact.paged import PAGED
from hybridge.artifact.safetensors_file import TensorSlot
from hybridge.artifact.state_dtypes import has_state_scales
from hybridge.exporter.checkpoint.quantized.cache_scales import CacheFactors
from hybridge.exporter.families.decoder_config import DecoderConfig
from hybridge.exporter.families.mtp import MtpHead
from hybridge.exporter.families.parameters import Parameter
from hybridge.exporter.layers.mtp_decoder import MtpDecoder
from hybridge.exporter.options import ExportOptions
from hybridge.exporter.trace.cache_factors import apply_cache_factors
from hybridge.exporter.trace.check import check_model
from hybridge.exporter.trace.finish import finish_model, name_axes
from hybridge.exporter.trace.interface import graph_bindings, mtp_bindings
from hybridge.exporter.trace.state_forms import use_state_forms
from hybridge.exporter.trace.tracing import trace_decoder, trace_module
from hybridge.exporter.trace.unroll import distinct_layers, unroll
from hybridge.exporter.weights.quantized import PlacedWeight
from hybridge.trt_plugins.catalog import DENSE_VERSION, DOMAIN
from hybridge.trt_plugins.checks import check_op_nodes
from hybridge.trt_plugins.functions import attach_functions
from hybridge.trt_plugins.specs.packed import PACKED_VERSION


def build_model(
    decoder: DecoderConfig,
    config: RuntimeConfig,
    parameters: tuple[Parameter, ...],
    slots: Mapping[str, TensorSlot | PlacedWeight],
    folder: Path,
    all_logits: bool,
    head: bool = True,
    cache_factors: Sequence[CacheFactors | None] = (),
) -> onnx.ModelProto:
    """The model of ``decoder`` whose weights are in ``slots`` under ``folder``.

    cache_factors: of the attention layers' FP8 keys and values, in order, if there are any.
    ExportError when the graph disagrees with ``config``, the parameters or the operator catalog.
    """
    distinct = distinct_layers(decoder)
    scaled = has_state_scales(config.recurrent_state_dtype)
    options = ExportOptions(
        # States of 8 bits and rings take their place in the traced graph.
        state_dtype=DType.FLOAT32 if scaled else config.recurrent_state_dtype,
        kv_dtype=FP8_E4M3 if config.has_kv_scales else "auto",
        layout=config.layout,
        all_logits=all_logits,
        head=head,
    )
    bindings = graph_bindings(distinct, options, config.dtype)
    traced = trace_decoder(distinct, bindings, config.dtype, options)
    _import_operators(traced, config)
    name_axes(traced.graph, bindings)
    unrolled = unroll(traced, decoder, bindings, graph_bindings(decoder, options, config.dtype))
    if scaled or config.state_rings:
        use_state_forms(unrolled.graph, config)
    apply_cache_factors(unrolled.graph, cache_factors)
    model = ir.to_proto(finish_model(unrolled, config.bindings, parameters, slots, folder))
    attach_functions(model)
    check_model(model, config.bindings)
    check_op_nodes(model)
    return model


def build_mtp_model(
    head: MtpHead,
    config: RuntimeConfig,
    slots: Mapping[str, TensorSlot | PlacedWeight],
    folder: Path,
    cache_factors: Sequence[CacheFactors | None] = (),
) -> onnx.ModelProto:
    """The model of a multi-token prediction head, with the pools and step of ``config``; all else as above."""
    bindings = mtp_bindings(config)
    traced = trace_module(lambda: MtpDecoder(head.decoder, config.has_kv_scales), bindings, config.dtype)
    _import_operators(traced, config)
    name_axes(traced.graph, bindings)
    apply_cache_factors(traced.graph, cache_factors)
    model = ir.to_proto(finish_model(traced, bindings, head.parameters, slots, folder))
    attach_functions(model)
    check_model(model, bindings)
    check_op_nodes(model)
    return model


def _import_operators(model: ir.Model, config: RuntimeConfig) -> None:
    """Import the layout's version of our operators: operators that two versions share are traced as the older."""
    imports = model.graph.opset_imports
    if DOMAIN in imports:
        imports[DOMAIN] = PACKED_VERSION if config.layout == PAGED else DENSE_VERSION
