"""Formats of quantised weights, and which format each matrix of a model gets. Names are those of checkpoints."""

from __future__ import annotations

import re

INT4, INT8, FP8, NVFP4, MXFP4 = "int4", "int8", "fp8", "nvfp4", "mxfp4"
FORMATS = (INT4, INT8, FP8, NVFP4, MXFP4)
BITS = {INT4: 4, INT8: 8}
# Group sizes of integer formats, and those of 4-bit floating-point formats.
GROUP_SIZES = (128, 64, 32, 16)
FLOAT_GROUPS = {NVFP4: 16, MXFP4: 32}
# The format of heads, which need more bits: their errors go straight into the logits.
HEAD_FORMATS = {INT4: INT8, INT8: INT8, FP8: FP8, NVFP4: FP8, MXFP4: FP8}

# Patterns in the names of modules that are not quantised.
_UNCHANGED = (
    re.compile(r"(^|\.)mtp\."),
    re.compile(r"(^|\.)(visual|vision_tower|vision_model)\."),
    re.compile(r"\.in_proj_(a|b|ba)$"),  # gates of a gated delta net
    re.compile(r"\.linear_attn\.[ab]_proj$"),
    re.compile(r"\.(self_attn|attention)\.(b|f|f_a|f_b)_proj$"),
    re.compile(r"\.(x_proj|dt_proj)$"),  # time steps of Mamba1, and their inputs and outputs
    re.compile(r"\.kv_b_proj$"),  # its halves multiply queries and outputs head by head
    re.compile(r"\.gate\.(down_proj|router_mlp\.\w+)$"),  # a router that is an MLP
    re.compile(r"\.(gate|router|shared_expert_gate|router\.layer)$"),
)
_EMBEDDING = re.compile(r"(^|\.)(embed_tokens|embeddings?|wte)$")
_HEAD = re.compile(r"(^|\.)lm_head$")


def is_unchanged(module: str) -> bool:
    """Whether the weight of ``module`` is not quantised: gates, routers, prediction heads, vision encoders."""
    return any(pattern.search(module) for pattern in _UNCHANGED)


def is_embedding(module: str) -> bool:
    """Whether ``module`` is the token embedding."""
    return _EMBEDDING.search(module) is not None


def is_head(module: str) -> bool:
    """Whether ``module`` is the language-model head."""
    return _HEAD.search(module) is not None


def is_convolution(module: str) -> bool:
    """Whether ``module`` is a convolution over tokens."""
    return module.endswith(("conv1d", ".conv", ".conv_qk_depthwise", ".conv_qk_grouped"))


def group_size(columns: int, most: int) -> int | None:
    """The largest group size, at most ``most``, that divides ``columns``; None: no group size does."""
    return next((each for each in GROUP_SIZES if each <= most and columns % each == 0), None)
