"""Declarations of ``cached_attention`` and ``cached_latent_attention``."""

from __future__ import annotations

import math
from dataclasses import replace
from types import MappingProxyType

from hybridge.artifact.dtypes import DType
from hybridge.trt_plugins.spec import AttributeSpec, OpSpec, TensorSpec, TypeVariable
from hybridge.trt_plugins.specs.attention_step import CACHE_DIMS, NEW_DIMS, WRITTEN
from hybridge.trt_plugins.specs.common import DATA_TYPE

_QUERY_DIMS = ("batch", "heads", "time", "head_dim")
SINKS = TensorSpec(
    "sinks",
    DType.FLOAT32,
    ("heads",),
    "score of each head's attention sink",
    optional=True,
    absent=-math.inf,
    selects=True,
)

CACHED_ATTENTION = OpSpec(
    name="cached_attention",
    doc=(
        "Writes the new keys and values of one layer into its KV cache and attends to the cache: y = softmax(scale * q "
        ". k) @ v over the visible positions, where exp(sinks[head]) is added to the sum that the softmax divides by. "
        "Query head i reads KV head i // (heads / kv_heads). Where the step is in the cache is what an attention_step "
        "node gives."
    ),
    inputs=(
        TensorSpec("query", "T", _QUERY_DIMS, "queries of the new tokens"),
        TensorSpec("key", "T", NEW_DIMS, "keys of the new tokens"),
        TensorSpec("value", "T", NEW_DIMS, "values of the new tokens"),
        TensorSpec("past_key", "T", CACHE_DIMS, "keys before the step"),
        TensorSpec("past_value", "T", CACHE_DIMS, "values before the step"),
        *WRITTEN,
        SINKS,
    ),
    outputs=(
        TensorSpec("y", "T", _QUERY_DIMS, "unspecified at tokens past context_lengths"),
        TensorSpec("present_key", "T", CACHE_DIMS, "keys after the step"),
        TensorSpec("present_value", "T", CACHE_DIMS, "values after the step"),
    ),
    attributes=(AttributeSpec("scale", "float", 1.0, "factor of the scores"),),
    type_variables=(TypeVariable("T", DATA_TYPE),),
    divides=(("kv_heads", "heads"),),
    has_kernels=False,
)

_LEFT_OUT = frozenset({"value", "past_value", "present_value", SINKS.name})

CACHED_LATENT_ATTENTION = replace(
    CACHED_ATTENTION,
    name="cached_latent_attention",
    doc=(
        "cached_attention of a layer whose keys are its values too, without sinks: one cache holds both. y = "
        "softmax(scale * q . k) @ k over the visible positions."
    ),
    inputs=tuple(tensor for tensor in CACHED_ATTENTION.inputs if tensor.name not in _LEFT_OUT),
    outputs=tuple(tensor for tensor in CACHED_ATTENTION.outputs if tensor.name not in _LEFT_OUT),
)

ATTENTIONS = MappingProxyType({spec.name: spec for spec in (CACHED_ATTENTION, CACHED_LATENT_ATTENTION)})
"""Both, by name."""
