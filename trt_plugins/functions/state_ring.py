"""The outputs of a function whose states have rings: a token is added to the ring, or all is written into the state."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from hybridge.artifact.dtypes import DType
from hybridge.artifact.state_rings import RING_LENGTHS
from hybridge.trt_plugins.functions import packed_rows
from hybridge.trt_plugins.functions.body import Body
from hybridge.trt_plugins.functions.lengths import clamped_lengths
from hybridge.trt_plugins.specs.packed import has_rows
from hybridge.trt_plugins.specs.state_ring import STATE, ring_names


def write_ring(body: Body, time: str, last: str, entry: Sequence[str]) -> None:
    """Write the outputs of the state, the ring and its length.

    time: size of the token axis, int64 [1]. last: the float32 state after the rows' last tokens. entry: what the ring
    holds of each row's first token, as ``RingNodes`` gives it.
    """
    spec, names = body.signature.spec, (STATE, *ring_names(body.signature.spec))
    lengths, one = body.unsqueeze(clamped_lengths(body, time), 1), body.constant([1])
    single = body.op("Equal", lengths if has_rows(spec) else time, one)
    has_tokens = body.op("GreaterOrEqual", lengths, one)
    values = [_in_type_of(body, name, value) for name, value in zip(names, (last, *entry), strict=True)]
    found = body.ring().outputs(single, has_tokens, [body.rows(name) for name in names], values[0], values[1:])
    for name, value in zip((*names, RING_LENGTHS), found, strict=True):
        body.output(packed_rows.scattered(body, name, value) if has_rows(spec) else value, f"{name}_out")


def write_flushed(body: Body, last: str, after: Callable[[str], str]) -> None:
    """The same in the speculative form, which leaves the rings of all slots that it reads or writes empty.

    last, after: as of ``Body.write_state``.
    """
    count = packed_rows.stored_count(body)
    has_tokens = body.unsqueeze(body.op("Greater", packed_rows.row_lengths(body), body.constant(0)), 1)
    states, last, flushed = (_in_type_of(body, STATE, value) for value in (after(count), last, body.read(STATE)))
    zero = body.array(np.zeros(1, np.int32))
    empty = body.op("Expand", zero, body.concat(body.size(last, 0), body.constant([1])))
    each = body.op("Expand", zero, body.concat(body.size(last, 0), count, body.constant([1])))
    for name, read, stored, end in ((STATE, flushed, states, last), (RING_LENGTHS, empty, each, empty)):
        rank = len(body.signature.input(name).dims)
        fed = body.unsqueeze(has_tokens, *range(2, rank)) if rank > 2 else has_tokens
        pool = packed_rows.scattered(body, name, body.op("Where", fed, read, body.rows(name)))
        body.output(packed_rows.scattered_states(body, name, stored, end, pool), f"{name}_out")
    for name in ring_names(body.signature.spec):
        body.output(name, f"{name}_out")


def first_token(body: Body, tensor: str) -> str:
    """The first token of each row, [b, 1, ...] of [b, t, ...]."""
    return body.slice(tensor, 1, body.constant([0]), body.constant([1]))


def _in_type_of(body: Body, name: str, value: str) -> str:
    dtype = body.signature.type_of(name)
    return value if dtype is DType.FLOAT32 else body.op("Cast", value, to=dtype.onnx)
