"""Declaration of ``paged_attention``."""

from __future__ import annotations

import math

from hybridge.artifact.dtypes import DType
from hybridge.trt_plugins.spec import AttributeSpec, DimLimit, OpSpec, TensorSpec, TypeVariable
from hybridge.trt_plugins.specs.common import DATA_TYPE
from hybridge.trt_plugins.specs.packed import PACKED_VERSION, QUERY_START_LOC, ROWS, TOKENS
from hybridge.trt_plugins.specs.reshape_and_cache import KV_POOL_DIMS, KV_POOL_PARTS

LATENT_DIM = 576
"""Heads of multi-head latent attention as its published models have them: a latent of 512 and a shared key of 64."""

PAGED_ATTENTION = OpSpec(
    name="paged_attention",
    doc=(
        "Causal attention of packed rows over a paged KV pool that already holds the new tokens. The last of row r's "
        "n new tokens has position seq_lens[r] - 1, the first seq_lens[r] - n. Position p of row r is in block "
        "block_table[r, p // block_size] at offset p % block_size. A token sees its own position and those before "
        "it, with sliding_window only the last sliding_window of them. Query head i reads KV head "
        "i // (heads / kv_heads). Scores are scale * q . k, then softcap * tanh(scores / softcap) where softcap is "
        "not 0; y = softmax(scores) @ v, where exp(sinks[head]) is added to the sum that the softmax divides by. "
        "All of it is computed in FP32. Positions that no token of the row sees are never read. In a pool of one part "
        "keys are the values too."
    ),
    inputs=(
        TensorSpec("query", "T", (TOKENS, "heads", "head_dim"), "queries of the new tokens"),
        TensorSpec("kv_pool", "T", KV_POOL_DIMS, "keys and values of all blocks"),
        TensorSpec(
            "block_table", DType.INT32, (ROWS, "max_blocks"), "blocks of each row; those that no token sees: -1"
        ),
        QUERY_START_LOC,
        TensorSpec(
            "seq_lens", DType.INT32, (ROWS,), "tokens of each row, cached and new; 0: a padding row, y is unspecified"
        ),
        TensorSpec(
            "sinks", DType.FLOAT32, ("heads",), "score of each head's attention sink", optional=True, absent=-math.inf
        ),
    ),
    outputs=(TensorSpec("y", "T", (TOKENS, "heads", "head_dim"), "one per token"),),
    attributes=(
        AttributeSpec("scale", "float", 0.0, "factor of the scores, 0 for 1 / sqrt(head_dim)", minimum=0.0),
        AttributeSpec("sliding_window", "int", 0, "visible positions, 0 for all", minimum=0),
        AttributeSpec("softcap", "float", 0.0, "bound of the scores, 0 for none", minimum=0.0),
    ),
    type_variables=(TypeVariable("T", DATA_TYPE),),
    divides=(("kv_heads", "heads"),),
    limits=(KV_POOL_PARTS,),
    kernel_limits=(
        DimLimit("head_dim", 64, 256, multiple_of=8, also=LATENT_DIM),
        DimLimit("block_size", 16, 128, multiple_of=16),
    ),
    version=PACKED_VERSION,
)
