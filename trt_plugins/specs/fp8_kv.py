"""The form of an operator over KV pools that holds keys and values in e4m3 with a scale for every token and head."""

from __future__ import annotations

from dataclasses import replace

from hybridge.artifact.dtypes import DType
from hybridge.artifact.kv_dtypes import E4M3_BYTES
from hybridge.trt_plugins.spec import DimLimit, OpSpec, TensorSpec
from hybridge.trt_plugins.specs.reshape_and_cache import KV_POOL_DIMS

KV_SCALES_DIMS = ("parts", "num_blocks", "kv_heads", "block_size")
"""Scales of keys, then of values; in each, a block's heads in order, and of a head its tokens."""
KV_SCALES = TensorSpec(
    "kv_scales", DType.FLOAT32, KV_SCALES_DIMS, "what the numbers of a head of a token in kv_pool are multiplied by"
)
_SUFFIX = "_fp8"


def fp8_form(spec: OpSpec) -> OpSpec:
    """``spec`` over pools of e4m3: kv_pool holds bytes, and kv_scales comes behind it wherever it stands.

    The scale of a head of a token is the smallest power of two, 2^-126 at least, that its largest magnitude is at most
    448 times of, 448 being the largest e4m3; its numbers are divided by the scale and rounded to nearest even. Where
    one of them is not finite, the scale is not a number. All else is as in ``spec``.
    """
    doc = f"{spec.doc} Keys and values in the pool are e4m3, as bytes, and times kv_scales[i, block, head, offset]."
    limits = tuple(
        DimLimit(limit.dim, limit.minimum, limit.maximum, 16) if limit.dim == "head_dim" else limit
        for limit in spec.kernel_limits
    )
    return replace(
        spec,
        name=spec.name + _SUFFIX,
        doc=doc,
        inputs=tuple(tensor for given in spec.inputs for tensor in _with_scales(given)),
        outputs=tuple(tensor for given in spec.outputs for tensor in _with_scales(given)),
        kernel_limits=limits,
    )


def has_kv_scales(spec: OpSpec) -> bool:
    """Whether ``spec`` is of that form."""
    return KV_SCALES in spec.inputs


def _with_scales(tensor: TensorSpec) -> tuple[TensorSpec, ...]:
    if tensor.dims != KV_POOL_DIMS:
        return (tensor,)
    name = tensor.name.replace("kv_pool", KV_SCALES.name)
    return replace(tensor, dtype=E4M3_BYTES), replace(KV_SCALES, name=name)
