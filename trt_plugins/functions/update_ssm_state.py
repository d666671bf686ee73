"""``update_ssm_state`` in standard operators: a chunked scan without a loop.

Letters of shapes: b batch, t tokens, h heads, g groups, r heads of a group, p head_dim, n state_size, c chunks,
q tokens of a chunk; inside a chunk, token i reads what token j <= i wrote.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import onnx

from hybridge.trt_plugins.functions.body import Body
from hybridge.trt_plugins.functions.lengths import clamped_lengths, valid_tokens
from hybridge.trt_plugins.functions.nodes import TO_END
from hybridge.trt_plugins.functions.signature import Signature
from hybridge.trt_plugins.functions.state_ring import first_token, write_flushed, write_ring
from hybridge.trt_plugins.specs.speculative import is_speculative
from hybridge.trt_plugins.specs.state_ring import is_ring

_SWAP_CHUNKS_AND_HEADS = [0, 3, 4, 1, 2, 5]
"""[b, c, q, g, r, .] to [b, g, r, c, q, .], and the same way back."""


def update_ssm_state_function(signature: Signature) -> onnx.FunctionProto:
    """Tokens are cut into chunks of min(chunk_size, t): one token is one chunk of one."""
    body = Body(signature)
    x, B, C, dt = (with_time(body, name) for name in ("x", "B", "C", "dt"))
    y, state, after = ssm_outputs(body, x, B, C, dt)
    if not signature.has_time:
        y = body.op("Squeeze", y, body.constant([1]))
    body.write(y, "y", like="x")
    if is_ring(signature.spec) and is_speculative(signature.spec):
        write_flushed(body, state, after)
    elif is_ring(signature.spec):
        write_ring(body, body.size(x, 1), state, _ring_entry(body, x, B, dt))
    else:
        body.write_state(state, after, "state_out", like="state")
    return body.function()


def _ring_entry(body: Body, *tokens: str) -> tuple[str, ...]:
    """What the ring holds of the first of the ``tokens``, x, B and dt."""
    x, B, dt = (first_token(body, tensor) for tensor in tokens)
    return body.ring().ssm_entry(x, B, _bounded_step(body, dt), body.read("A"))


def ssm_outputs(body: Body, x: str, B: str, C: str, dt: str) -> tuple[str, str, Callable[[str], str]]:
    """y like ``x`` [b, t, h, p], zero at padding, the new state, and the states after each of the first tokens, for any
    function with A, D, dt_bias, state, context_lengths and this operator's attributes; B and C [b, t, g, n], dt
    [b, t, h]."""
    time = body.size(x, 1)
    lengths = clamped_lengths(body, time)
    valid = valid_tokens(body, lengths, time, rank=4)
    step = time_step(body, dt, body.op("Squeeze", valid, body.constant([3])))
    xdt = body.op("Where", valid, body.op("Mul", x, body.unsqueeze(step, 3)), body.float32(0.0))
    B = body.op("Where", valid, B, body.float32(0.0))
    log_decay = body.op("Mul", step, body.read("A"))
    chunks = _chunks(body, time, x, B, log_decay=log_decay, xdt=xdt, C=C)
    state = body.read("state")
    y, last = _scan(body, chunks, state)
    y = _tokens(body, y, x, time)
    skip = body.op("Mul", x, body.unsqueeze(body.read("D"), 1))
    y = body.op("Where", valid, body.op("Add", y, skip), body.float32(0.0))
    touched = body.op("Greater", body.unsqueeze(lengths, 1, 2, 3), body.constant(0))
    last = body.op("Where", touched, body.op("Reshape", last, body.op("Shape", state)), state)
    return y, last, lambda count: _states_after(body, state, xdt, log_decay, B, count)


def _states_after(body: Body, state: str, xdt: str, log_decay: str, B: str, count: str) -> str:
    """The states [b, count, h, p, n] after each of the first ``count`` tokens, as one matrix product.

    What each token writes, with ``state`` in front, is joined by the decays from one to the other.
    """
    xdt, log_decay, B = (body.slice(tensor, 1, body.constant([0]), count) for tensor in (xdt, log_decay, B))
    one, minus = body.constant([1]), body.constant([-1])
    leading = body.concat(body.size(xdt, 0, 2), body.size(B, 2))
    per_group = body.reshape(xdt, leading, minus, body.size(xdt, 3), one)
    written = body.op("Mul", per_group, body.reshape(B, leading, one, one, body.size(B, 3)))  # [b, t, g, r, p, n]
    written = body.reshape(written, body.size(xdt, 0, 3), minus)
    first = body.reshape(state, body.size(state, 0), one, body.size(state, 1), minus)
    stacked = body.op("Transpose", body.concat(first, written, axis=1), perm=[0, 2, 1, 3])  # [b, h, 1 + t, p * n]
    decays = body.op("Pad", log_decay, body.constant([1, 0]), "", one)
    decays = body.unsqueeze(body.op("Transpose", decays, perm=[0, 2, 1]), 3)
    joined = body.op("MatMul", _segment_decay(body, decays, body.op("Add", count, one), axis=2), stacked)
    after = body.op("Transpose", body.slice(joined, 2, one, body.constant([TO_END])), perm=[0, 2, 1, 3])
    return body.reshape(after, body.size(xdt, 0, 2), body.size(state, 1, 4))


def with_time(body: Body, name: str) -> str:
    """Input ``name`` as float32 with a token axis."""
    value = body.read(name)
    return value if body.signature.has_time else body.unsqueeze(value, 1)


def time_step(body: Body, dt: str, valid: str) -> str:
    """clamp(softplus(dt + dt_bias)), zero where ``valid`` is false; dt, valid and the result [b, t, h]."""
    return body.op("Where", valid, _bounded_step(body, dt), body.float32(0.0))


def _bounded_step(body: Body, dt: str) -> str:
    low, high = (float(body.signature.attribute(f"time_step_{end}")) for end in ("min", "max"))
    step = body.op("Add", dt, body.read("dt_bias"))
    if body.signature.attribute("dt_softplus"):
        step = body.op("Softplus", step)
        low = low if low > 0.0 else -math.inf
    if low > -math.inf:
        step = body.op("Max", step, body.float32(low))
    if high < math.inf:
        step = body.op("Min", step, body.float32(high))
    return step


@dataclass(frozen=True)
class _Chunks:
    """Chunked inputs and the sizes that later reshapes need (int64 tensors)."""

    xdt: str  # [b, g, r, c, q, p]
    log_decay: str  # [b, g, r, c, q, 1]
    B: str  # [b, g, 1, c, q, n]
    C: str  # [b, g, 1, c, q, n]
    count: str  # c
    length: str  # q
    heads: str  # [b, g, r]
    state: str  # [p, n]


def _chunks(body: Body, time: str, x: str, B_valid: str, *, log_decay: str, xdt: str, C: str) -> _Chunks:
    one, minus = body.constant([1]), body.constant([-1])
    chunk_size = body.constant([int(body.signature.attribute("chunk_size"))])
    # Both grow with t, so that an engine bounds each by its value at the longest t; a quotient such as t / count has
    # no such bound, and TensorRT would reserve memory for count * t tokens.
    count, length = body.ceil_div(time, chunk_size), body.op("Min", time, chunk_size)
    missing = body.op("Sub", body.op("Mul", count, length), time)
    pads = body.concat(body.constant([0]), missing)
    rows, groups, head_dim, state_size = body.size(x, 0), body.size(C, 2), body.size(x, 3), body.size(C, 3)
    leading = body.concat(rows, count, length, groups)

    def chunked(tensor: str, heads: str, size: str) -> str:
        padded = body.op("Pad", tensor, pads, "", one)
        return body.op("Transpose", body.reshape(padded, leading, heads, size), perm=_SWAP_CHUNKS_AND_HEADS)

    return _Chunks(
        xdt=chunked(xdt, minus, head_dim),
        log_decay=chunked(log_decay, minus, one),
        B=chunked(B_valid, one, state_size),
        C=chunked(C, one, state_size),
        count=count,
        length=length,
        heads=body.concat(rows, groups, body.op("Div", body.size(x, 2), groups)),
        state=body.concat(head_dim, state_size),
    )


def _scan(body: Body, chunks: _Chunks, state: str) -> tuple[str, str]:
    """y [b, g, r, c, q, p] and the last state [b, g, r, 1, p * n]."""
    scores = body.op("MatMul", chunks.C, _transposed(body, chunks.B))  # [b, g, 1, c, i, j]
    decay = _segment_decay(body, chunks.log_decay, chunks.length, axis=4)
    inside = body.op("MatMul", body.op("Mul", scores, decay), chunks.xdt)
    before, last = _states(body, chunks, state)
    carried = body.op("MatMul", chunks.C, _transposed(body, before))
    from_start = body.op("Exp", body.op("CumSum", chunks.log_decay, body.constant(4)))
    return body.op("Add", inside, body.op("Mul", carried, from_start)), last


def _transposed(body: Body, tensor: str) -> str:
    """The last two of six axes swapped; engines fold this into the product that reads it."""
    return body.op("Transpose", tensor, perm=[0, 1, 2, 3, 5, 4])


def _segment_decay(body: Body, log_decay: str, count: str, axis: int) -> str:
    """[..., i, j] = exp(sum of log_decay over j+1..i) for j <= i, else 0, from log_decay [..., k, 1], k at ``axis``.

    The sums start at each j, so no two long sums are ever subtracted; above the diagonal the exponent is 0, so
    nothing overflows there.
    """
    column = body.range(count)
    row = body.unsqueeze(column, 1)
    terms = body.op("Where", body.op("Greater", row, column), log_decay, body.float32(0.0))
    decay = body.op("Exp", body.op("CumSum", terms, body.constant(axis)))
    return body.op("Where", body.op("GreaterOrEqual", row, column), decay, body.float32(0.0))


def _states(body: Body, chunks: _Chunks, state: str) -> tuple[str, str]:
    """The state before each chunk [b, g, r, c, p, n] and after the last one [b, g, r, 1, p * n].

    What each chunk alone leaves behind, with the initial state in front, is joined by one matrix of the decay from
    the end of one to the start of another.
    """
    minus = body.constant([-1])
    to_end = body.op("Exp", body.op("CumSum", chunks.log_decay, body.constant(4), exclusive=1, reverse=1))
    written = body.op("MatMul", _transposed(body, body.op("Mul", chunks.xdt, to_end)), chunks.B)
    first = body.reshape(state, chunks.heads, body.constant([1]), chunks.state)
    past_count = body.op("Add", chunks.count, body.constant([1]))
    stacked = body.reshape(body.concat(first, written, axis=3), chunks.heads, past_count, minus)
    totals = body.op("ReduceSum", chunks.log_decay, body.constant([4]), keepdims=0)  # [b, g, r, c, 1]
    totals = body.op("Pad", totals, body.constant([1, 0]), "", body.constant([3]))
    joined = body.op("MatMul", _segment_decay(body, totals, past_count, axis=3), stacked)
    before = body.reshape(body.slice(joined, 3, body.constant([0]), minus), chunks.heads, chunks.count, chunks.state)
    return before, body.slice(joined, 3, minus, body.constant([TO_END]))


def _tokens(body: Body, y: str, x: str, time: str) -> str:
    """[b, g, r, c, q, p] back to [b, t, h, p], the tokens that filled up the last chunk removed."""
    y = body.op("Transpose", y, perm=_SWAP_CHUNKS_AND_HEADS)
    y = body.reshape(y, body.size(x, 0), body.constant([-1]), body.size(x, 2, 4))
    return body.slice(y, 1, body.constant([0]), time)
