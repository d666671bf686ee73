"""Declaration of ``reshape_and_cache``."""

from __future__ import annotations

from hybridge.artifact.dtypes import DType
from hybridge.trt_plugins.spec import DimLimit, OpSpec, TensorSpec, TypeVariable
from hybridge.trt_plugins.specs.common import DATA_TYPE
from hybridge.trt_plugins.specs.packed import PACKED_VERSION, TOKENS

KV_POOL_DIMS = ("parts", "num_blocks", "block_size", "kv_heads", "head_dim")
"""Keys, then values, or one part of keys that are the values too; in each, the tokens of a block one after another, and
of a token its heads."""
KV_POOL_PARTS = DimLimit("parts", 1, 2)

RESHAPE_AND_CACHE = OpSpec(
    name="reshape_and_cache",
    doc=(
        "Writes the keys and values of new tokens into a paged KV pool: with block = slot_mapping[t] // block_size "
        "and offset = slot_mapping[t] % block_size, kv_pool[0, block, offset] = key[t] and "
        "kv_pool[1, block, offset] = value[t]. Everything else of the pool stays unchanged. In a pool of one part keys "
        "are the values too: value must be key."
    ),
    inputs=(
        TensorSpec("key", "T", (TOKENS, "kv_heads", "head_dim"), "keys of the new tokens"),
        TensorSpec("value", "T", (TOKENS, "kv_heads", "head_dim"), "values of the new tokens"),
        TensorSpec("kv_pool", "T", KV_POOL_DIMS, "keys and values of all blocks"),
        TensorSpec("slot_mapping", DType.INT32, (TOKENS,), "place of each token, none twice; -1: it has no place"),
    ),
    outputs=(TensorSpec("kv_pool_out", "T", KV_POOL_DIMS, "the pool with the new tokens"),),
    attributes=(),
    type_variables=(TypeVariable("T", DATA_TYPE),),
    limits=(KV_POOL_PARTS,),
    version=PACKED_VERSION,
)
