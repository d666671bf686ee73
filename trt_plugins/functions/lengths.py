"""Valid tokens of right-padded rows, in standard operators."""

from __future__ import annotations

from hybridge.artifact.dtypes import DType
from hybridge.trt_plugins.functions.body import Body
from hybridge.trt_plugins.functions.packed_rows import row_lengths
from hybridge.trt_plugins.specs.packed import has_rows


def clamped_lengths(body: Body, time: str) -> str:
    """``context_lengths`` as int64 [batch], clamped to 0..time; ``time`` is a one-element int64 tensor.

    Of packed rows their lengths, which are never more.
    """
    if has_rows(body.signature.spec):
        return row_lengths(body)
    lengths = body.op("Cast", "context_lengths", to=DType.INT64.onnx)
    return body.op("Max", body.op("Min", lengths, time), body.constant([0]))


def valid_tokens(body: Body, lengths: str, time: str, rank: int) -> str:
    """Bool [batch, time, 1, ...] of ``rank`` axes: token t of row b counts where t < lengths[b]."""
    axes = range(1, rank - 1)
    positions = body.unsqueeze(body.range(time), *axes) if rank > 2 else body.range(time)
    return body.op("Less", positions, body.unsqueeze(lengths, *range(1, rank)))
