"""Declaration of ``attention_step``."""

from __future__ import annotations

from hybridge.artifact.dtypes import DType
from hybridge.trt_plugins.spec import AttributeSpec, OpSpec, TensorSpec, TypeVariable
from hybridge.trt_plugins.specs.common import CONTEXT_LENGTHS, DATA_TYPE

CACHE_DIMS = ("batch", "kv_heads", "max_seq", "head_dim")
NEW_DIMS = ("batch", "kv_heads", "time", "head_dim")
WRITTEN = (
    TensorSpec("start", DType.INT64, ("batch",), "first position of the caches that the step writes in each row"),
    TensorSpec("slots", DType.INT64, NEW_DIMS, "the position of every number that it writes"),
    TensorSpec("source", DType.INT64, NEW_DIMS, "the new token from which that number comes"),
    TensorSpec("valid", DType.BOOL, ("batch", 1, "time", 1), "false where a position keeps what it holds"),
    TensorSpec("visible", DType.BOOL, ("batch", 1, "time", "max_seq"), "the keys that each new token sees"),
)
"""Outputs of ``attention_step``, inputs of ``cached_attention``."""

ATTENTION_STEP = OpSpec(
    name="attention_step",
    doc=(
        "Where a step of right-padded rows is in KV caches, for all layers of one sliding window and cache shape. "
        "Token t of a row has position past_lengths + t and sees the positions up to its own, with sliding_window only "
        "the last sliding_window of them. The step writes time positions of each row from start = past_lengths on, or "
        "from earlier where padding would run over the end of the cache. A position that receives no valid new token "
        "keeps what it holds, so padding never changes a cache."
    ),
    inputs=(
        TensorSpec("input_ids", DType.INT64, ("batch", "time"), "new tokens, of which only the number counts"),
        CONTEXT_LENGTHS,
        TensorSpec("past_lengths", DType.INT32, ("batch",), "tokens of each row in the caches"),
        TensorSpec("cache", "T", CACHE_DIMS, "a KV cache of these layers, of which only the shape counts"),
    ),
    outputs=WRITTEN,
    attributes=(AttributeSpec("sliding_window", "int", 0, "visible positions, 0 for all", minimum=0),),
    type_variables=(TypeVariable("T", DATA_TYPE),),
    has_kernels=False,
)
