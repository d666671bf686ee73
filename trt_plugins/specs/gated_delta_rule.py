"""Declaration of ``gated_delta_rule``."""

from __future__ import annotations

from hybridge.artifact.dtypes import DType
from hybridge.trt_plugins.spec import AttributeDim, AttributeSpec, DimLimit, OpSpec, TensorSpec, TypeVariable
from hybridge.trt_plugins.specs.common import CONTEXT_LENGTHS, DATA_TYPE

GATED_DELTA_RULE = OpSpec(
    name="gated_delta_rule",
    doc=(
        "Gated delta rule (arXiv 2412.06464), with one decay per head or, as in Kimi Delta Attention "
        "(arXiv 2510.26692), one per key channel. Per value head, with q and k optionally divided by their norms: "
        "state = exp(g[t]) * state; u = beta[t] * (v[t] - k[t] @ state); state = state + outer(k[t], u); "
        "o[t] = scale * q[t] @ state. Value head i reads key head i // (value_heads / key_heads). All state maths is "
        "in FP32."
    ),
    inputs=(
        TensorSpec("q", "T", ("batch", "time?", "key_heads", "key_size"), "queries, right-padded"),
        TensorSpec("k", "T", ("batch", "time?", "key_heads", "key_size"), "keys"),
        TensorSpec("v", "T", ("batch", "time?", "value_heads", "value_size"), "values"),
        TensorSpec("g", DType.FLOAT32, ("batch", "time?", "value_heads", "decay_size"), "log of the decay, at most 0"),
        TensorSpec("beta", "T", ("batch", "time?", "value_heads"), "how much of the difference is written"),
        TensorSpec("state", "S", ("batch", "value_heads", "key_size", "value_size"), "state before the first token"),
        CONTEXT_LENGTHS,
    ),
    outputs=(
        TensorSpec("o", "T", ("batch", "time?", "value_heads", "value_size"), "zero at tokens past context_lengths"),
        TensorSpec(
            "state_out", "S", ("batch", "value_heads", "key_size", "value_size"), "state after the valid tokens"
        ),
    ),
    attributes=(
        AttributeSpec(
            "decay", "string", "head", "head: decay_size is 1; key_channel: it is key_size", ("head", "key_channel")
        ),
        AttributeSpec("use_qk_l2norm", "int", 1, "1: q and k are divided by sqrt(sum of squares + 1e-6)", (0, 1)),
        AttributeSpec("scale", "float", 0.0, "factor of q, 0 for 1 / sqrt(key_size)", minimum=0.0),
        AttributeSpec("chunk_size", "int", 64, "most tokens handled as one matrix; changes rounding only", minimum=1),
    ),
    type_variables=(TypeVariable("T", DATA_TYPE), TypeVariable("S", DATA_TYPE, one_of=(DType.FLOAT32, "T"))),
    divides=(("key_heads", "value_heads"),),
    attribute_dims=(AttributeDim("decay_size", "decay", (("head", 1), ("key_channel", "key_size"))),),
    kernel_limits=(
        DimLimit("key_size", 8, 256, multiple_of=8),
        DimLimit("value_size", 8, 256, multiple_of=8),
    ),
)
