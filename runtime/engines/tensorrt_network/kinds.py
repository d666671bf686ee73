"""The supported kinds of layers."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from hybridge.runtime.engines.tensorrt_network.layer_call import Kind
from hybridge.runtime.engines.tensorrt_network.layers import (
    attention,
    elementwise,
    fill,
    gather,
    matrix,
    quantize,
    reduce,
    rotary,
    shuffle,
    slices,
)

KINDS: Mapping[str, Kind] = MappingProxyType(
    {
        "ACTIVATION": Kind(elementwise.activation),
        "ATTENTION_INPUT": Kind(attention.attention_input),
        "ATTENTION_OUTPUT": Kind(elementwise.identity),
        "CAST": Kind(elementwise.cast),
        "CONCATENATION": Kind(shuffle.concatenation),
        "CUMULATIVE": Kind(reduce.cumulative, (1,)),
        "DEQUANTIZE": Kind(quantize.dequantize),
        "EINSUM": Kind(matrix.einsum),
        "ELEMENTWISE": Kind(elementwise.elementwise),
        "FILL": Kind(fill.fill, (0,)),
        "GATHER": Kind(gather.gather),
        "IDENTITY": Kind(elementwise.identity),
        "KV_CACHE_UPDATE": Kind(attention.kv_cache_update),
        "MATRIX_MULTIPLY": Kind(matrix.matrix_multiply),
        "NORMALIZATION": Kind(reduce.normalization),
        "QUANTIZE": Kind(quantize.quantize),
        "REDUCE": Kind(reduce.reduce),
        "ROTARY_EMBEDDING": Kind(rotary.rotary_embedding),
        "SCATTER": Kind(gather.scatter),
        "SELECT": Kind(elementwise.select),
        "SHAPE": Kind(shuffle.shape),
        "SHUFFLE": Kind(shuffle.shuffle, (1,)),
        "SLICE": Kind(slices.slices, (1, 2, 3, 5)),
        "SOFTMAX": Kind(reduce.softmax),
        "SQUEEZE": Kind(shuffle.squeeze, (1,)),
        "TOPK": Kind(reduce.topk, (1,)),
        "UNARY": Kind(elementwise.unary),
        "UNSQUEEZE": Kind(shuffle.unsqueeze, (1,)),
    }
)
