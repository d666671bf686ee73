"""The attributes of a TensorRT layer as plain values.

``INetworkDefinition.get_layer`` returns an ``ILayer``; a layer shows its attributes once its Python class is that of
its kind.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

# Kind of layer: its Python class, and the attributes that say what it computes.
_CLASSES: Mapping[str, tuple[str, tuple[str, ...]]] = MappingProxyType(
    {
        "ACTIVATION": ("IActivationLayer", ("type", "alpha", "beta")),
        "CAST": ("ICastLayer", ("to_type",)),
        "CONCATENATION": ("IConcatenationLayer", ("axis",)),
        "CONSTANT": ("IConstantLayer", ("shape",)),
        "CUMULATIVE": ("ICumulativeLayer", ("op", "exclusive", "reverse")),
        "DEQUANTIZE": ("IDequantizeLayer", ("axis", "block_shape", "to_type")),
        "DYNAMIC_QUANTIZE": ("IDynamicQuantizeLayer", ("axis", "block_size", "scale_type", "to_type")),
        "EINSUM": ("IEinsumLayer", ("equation",)),
        "ELEMENTWISE": ("IElementWiseLayer", ("op",)),
        "FILL": ("IFillLayer", ("operation", "shape", "alpha", "beta", "to_type")),
        "GATHER": ("IGatherLayer", ("mode", "axis", "num_elementwise_dims")),
        "KV_CACHE_UPDATE": ("IKVCacheUpdateLayer", ("cache_mode", "update_form", "update_lengths")),
        "MATRIX_MULTIPLY": ("IMatrixMultiplyLayer", ("op0", "op1")),
        "NORMALIZATION": ("INormalizationLayer", ("axes", "epsilon", "num_groups", "is_v2")),
        "QUANTIZE": ("IQuantizeLayer", ("axis", "block_shape", "to_type")),
        "REDUCE": ("IReduceLayer", ("op", "axes", "keep_dims")),
        "ROTARY_EMBEDDING": ("IRotaryEmbeddingLayer", ("interleaved", "rotary_embedding_dim")),
        "SCATTER": ("IScatterLayer", ("mode", "axis")),
        "SHUFFLE": ("IShuffleLayer", ("first_transpose", "reshape_dims", "second_transpose", "zero_is_placeholder")),
        "SLICE": ("ISliceLayer", ("mode", "start", "shape", "stride", "axes")),
        "SOFTMAX": ("ISoftMaxLayer", ("axes",)),
        "TOPK": ("ITopKLayer", ("op", "k", "axes", "indices_type")),
        "UNARY": ("IUnaryLayer", ("op",)),
        "ATTENTION_INPUT": ("IAttentionInputLayer", ()),
        "TRIP_LIMIT": ("ITripLimitLayer", ("kind",)),
        "RECURRENCE": ("IRecurrenceLayer", ()),
        "ITERATOR": ("IIteratorLayer", ("axis", "reverse")),
        "LOOP_OUTPUT": ("ILoopOutputLayer", ("kind", "axis")),
        "PLUGIN_V3": ("IPluginV3Layer", ()),
    }
)
_ATTENTION = (
    "norm_op",
    "causal_kind",
    "mask",
    "query_form",
    "key_value_form",
    "query_lengths",
    "key_value_lengths",
    "normalization_quantize_scale",
)


def show_kind(trt: Any, layer: Any, kind: str) -> None:
    """Give ``layer`` the Python class of its ``kind``, where this module knows it."""
    if kind in _CLASSES:
        layer.__class__ = getattr(trt, _CLASSES[kind][0])


def attributes_of(layer: Any, kind: str) -> dict[str, Any]:
    """The attributes of a layer that ``show_kind`` has prepared; none of a kind that this module does not know.

    An attribute that the layer takes as an input instead, or does not have, is None.
    """
    if kind == "ATTENTION_INPUT":
        return {name: plain_value(getattr(layer.attention, name, None)) for name in _ATTENTION}
    return {name: _attribute(layer, name) for name in _CLASSES.get(kind, ("", ()))[1]}


def _attribute(layer: Any, name: str) -> Any:
    try:
        return plain_value(getattr(layer, name, None))
    except (RuntimeError, ValueError):  # raised by the bindings for a value that is not set
        return None


def plain_value(value: Any) -> Any:
    """Numbers and texts as they are, enumerators and tensors by name, dimensions and permutations as lists."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if hasattr(value, "name"):
        return value.name
    if isinstance(value, Sequence) or hasattr(value, "__len__"):
        return [plain_value(value[index]) for index in range(len(value))]
    return str(value)
