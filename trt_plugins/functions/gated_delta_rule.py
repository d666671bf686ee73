"""``gated_delta_rule`` in standard operators: a scan over chunks, the tokens of a chunk as matrices.

Letters of shapes: b batch, t tokens, s key heads, r value heads of a key head, n key_size, m value_size, c chunks,
q tokens of a chunk, d decay_size (1 or n); inside a chunk, token i reads what token j <= i wrote.
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx

from hybridge.trt_plugins.functions.body import Body
from hybridge.trt_plugins.functions.lengths import clamped_lengths, valid_tokens
from hybridge.trt_plugins.functions.signature import Signature
from hybridge.trt_plugins.functions.state_ring import first_token, write_flushed, write_ring
from hybridge.trt_plugins.functions.update_ssm_state import with_time
from hybridge.trt_plugins.specs.speculative import is_speculative
from hybridge.trt_plugins.specs.state_ring import is_ring

_NORM_EPSILON = 1e-6
# Tokens of a chunk with one decay a key channel: its segment decays are tokens x tokens x key_size numbers a head.
_CHANNEL_CHUNK = 16
_CHUNKS_FIRST = [1, 0, 3, 4, 2, 5]
"""[b, c, q, s, r, .] to [c, b, s, r, q, .]."""


def gated_delta_rule_function(signature: Signature) -> onnx.FunctionProto:
    """Tokens are cut into chunks of min(chunk_size, t): one token is one chunk of one."""
    body = Body(signature)
    q, k, v, g, beta = (with_time(body, name) for name in ("q", "k", "v", "g", "beta"))
    raw_k = k
    q, k = (_normed(body, tensor) for tensor in (q, k))
    time = body.size(v, 1)
    lengths = clamped_lengths(body, time)
    valid = valid_tokens(body, lengths, time, rank=4)
    layout = _Layout.of(body, q, v, time, _chunk_size(body))
    state = body.read("state")
    inputs = (
        layout.chunked(body, body.op("Mul", q, _scale(body, q)), valid, key_heads=True),
        layout.chunked(body, k, valid, key_heads=True),
        layout.chunked(body, v, valid),
        layout.chunked(body, g, valid),
        layout.chunked(body, body.unsqueeze(beta, 3), valid),
    )
    chunk = _Chunk(body, layout.length, str(signature.attribute("decay")) == "head", layout.levels)
    first = body.reshape(state, layout.heads, body.size(state, 2, 4))
    last, o = body.scan(chunk.step, first, inputs, rank=5)
    o = layout.tokens(body, o, v)
    o = body.op("Where", valid, o, body.float32(0.0))
    if not signature.has_time:
        o = body.op("Squeeze", o, body.constant([1]))
    body.write(o, "o", like="v")
    touched = body.op("Greater", body.unsqueeze(lengths, 1, 2, 3), body.constant(0))
    last = body.op("Where", touched, body.op("Reshape", last, body.op("Shape", state)), state)

    def after(count: str) -> str:
        return _states_after(body, (q, k, v, g, beta), valid, count)

    if is_ring(signature.spec) and is_speculative(signature.spec):
        write_flushed(body, last, after)
    elif is_ring(signature.spec):
        write_ring(body, time, last, _ring_entry(body, state, raw_k, v, g, beta))
    else:
        body.write_state(last, after, "state_out", "state")
    return body.function()


def _ring_entry(body: Body, state: str, *tokens: str) -> tuple[str, ...]:
    """What the ring holds of the first of the ``tokens``, k as given, v, g and beta; ``state``: before it."""
    k, v, g, beta = (first_token(body, tensor) for tensor in tokens)
    norm = _norm(body, k) if body.signature.attribute("use_qk_l2norm") else None
    return body.ring().delta_entry(state, k, norm, v, g, body.unsqueeze(beta, 3))


def _states_after(body: Body, tokens: tuple[str, ...], valid: str, count: str) -> str:
    """The states [b, count, heads, n, m] after each of the first ``count`` tokens, one after another."""
    begin, state = body.constant([0]), body.read("state")
    q, k, v, g, beta = (body.slice(tensor, 1, begin, count) for tensor in tokens)
    valid = body.slice(valid, 1, begin, count)
    layout = _Layout.of(body, q, v, count, 1)
    inputs = (
        layout.chunked(body, k, valid, key_heads=True),
        layout.chunked(body, v, valid),
        layout.chunked(body, g, valid),
        layout.chunked(body, body.unsqueeze(beta, 3), valid),
    )

    def step(before: str, slices: list[str]) -> tuple[str, str]:
        key, value, decay, strength = slices
        decayed = body.op("Mul", _transposed(body, body.op("Exp", decay)), before)
        u = body.op("Mul", strength, body.op("Sub", value, body.op("MatMul", key, decayed)))
        after = body.op("Add", decayed, body.op("MatMul", _transposed(body, key), u))
        return after, body.op("Identity", after)

    first = body.reshape(state, layout.heads, body.size(state, 2, 4))
    _, states = body.scan(step, first, inputs, rank=5)
    states = body.op("Transpose", states, perm=[1, 0, 2, 3, 4, 5])
    return body.reshape(states, body.size(v, 0, 2), body.size(state, 1, 4))


def _chunk_size(body: Body) -> int:
    size = int(body.signature.attribute("chunk_size"))
    return size if body.signature.attribute("decay") == "head" else min(size, _CHANNEL_CHUNK)


def _normed(body: Body, tensor: str) -> str:
    if not body.signature.attribute("use_qk_l2norm"):
        return tensor
    return body.op("Div", tensor, _norm(body, tensor))


def _norm(body: Body, tensor: str) -> str:
    squares = body.op("ReduceSumSquare", tensor, body.constant([3]), keepdims=1)
    return body.op("Sqrt", body.op("Add", squares, body.float32(_NORM_EPSILON)))


def _scale(body: Body, q: str) -> str:
    """The factor of q, a float32 tensor of one element."""
    scale = float(body.signature.attribute("scale"))
    if scale:
        return body.float32(scale)
    return body.op("Reciprocal", body.op("Sqrt", body.op("Cast", body.size(q, 3), to=onnx.TensorProto.FLOAT)))


@dataclass(frozen=True)
class _Layout:
    """Sizes of the chunks of tokens, as int64 tensors of one element, except for ``levels``.

    levels: the least number with 2 ** levels tokens or more in a chunk.
    """

    rows: str
    count: str  # c
    length: str  # q
    pads: str
    key_heads: str  # s
    ratio: str  # r
    heads: str  # [b, s, r]
    time: str
    levels: int

    @classmethod
    def of(cls, body: Body, q: str, v: str, time: str, size: int) -> _Layout:
        """Chunks of at most ``size`` tokens."""
        # Both grow with t, so that an engine bounds each by its value at the longest t.
        count, length = body.ceil_div(time, body.constant([size])), body.op("Min", time, body.constant([size]))
        missing = body.op("Sub", body.op("Mul", count, length), time)
        rows, key_heads = body.size(q, 0), body.size(q, 2)
        ratio = body.op("Div", body.size(v, 2), key_heads)
        pads = body.concat(body.constant([0]), missing)
        heads = body.concat(rows, key_heads, ratio)
        return cls(rows, count, length, pads, key_heads, ratio, heads, time, (size - 1).bit_length())

    def chunked(self, body: Body, tensor: str, valid: str, key_heads: bool = False) -> str:
        """[b, t, heads, .] as [c, b, s, r, q, .], r being 1 for key heads; zero at padding."""
        clean = body.op("Where", valid, tensor, body.float32(0.0))
        padded = body.op("Pad", clean, self.pads, "", body.constant([1]))
        ratio = body.constant([1]) if key_heads else self.ratio
        split = body.reshape(padded, self.rows, self.count, self.length, self.key_heads, ratio, body.size(tensor, 3))
        return body.op("Transpose", split, perm=_CHUNKS_FIRST)

    def tokens(self, body: Body, o: str, v: str) -> str:
        """[c, b, s, r, q, m] back to [b, t, heads, m], the tokens that filled up the last chunk removed."""
        o = body.op("Transpose", o, perm=[1, 0, 4, 2, 3, 5])
        o = body.reshape(o, self.rows, body.constant([-1]), body.size(v, 2, 4))
        return body.slice(o, 1, body.constant([0]), self.time)


class _Chunk:
    """One step of the scan, over what all steps share: masks of the pairs of tokens of a chunk."""

    def __init__(self, body: Body, length: str, one_decay: bool, levels: int) -> None:
        self._body = body
        self._one_decay = one_decay
        column = body.range(length)
        row = body.unsqueeze(column, 1)
        self._later = body.op("Greater", row, column)
        self._not_earlier = body.op("GreaterOrEqual", row, column)
        self._identity = body.op("Cast", body.op("Equal", row, column), to=onnx.TensorProto.FLOAT)
        self._couplings = [self._coupling(row, column, 1 << level) for level in range(levels)]

    def step(self, state: str, slices: list[str]) -> tuple[str, str]:
        """(state [b, s, r, n, m], (q, k, v, g, beta)) to (next state, o [b, s, r, q, m])."""
        body, (q, k, v, g, beta) = self._body, slices
        from_start = body.op("Exp", body.op("CumSum", g, body.constant(3)))
        segment = self._segment_decay(g)
        similar = body.op("Mul", beta, self._products(k, k, segment, self._later))
        read = body.op("MatMul", body.op("Mul", k, from_start), state)
        target = body.op("Mul", beta, body.op("Sub", v, read))
        u = body.op("MatMul", self._inverse(similar), target)
        inside = body.op("MatMul", self._products(q, k, segment, self._not_earlier), u)
        o = body.op("Add", inside, body.op("MatMul", body.op("Mul", q, from_start), state))
        to_end = body.op("Exp", body.op("CumSum", g, body.constant(3), exclusive=1, reverse=1))
        written = body.op("MatMul", _transposed(body, body.op("Mul", k, to_end)), u)
        total = body.op("Exp", body.op("ReduceSum", g, body.constant([3]), keepdims=1))  # [b, s, r, 1, d]
        return body.op("Add", body.op("Mul", _transposed(body, total), state), written), o

    def _segment_decay(self, g: str) -> str:
        """exp(sum of g over j+1..i), 1 above the diagonal: [b, s, r, i, j] of one decay a head, else [..., i, j, n].

        The sums start at each j, so no two long sums are ever subtracted.
        """
        body = self._body
        if self._one_decay:
            terms = body.op("Where", self._later, g, body.float32(0.0))
        else:
            later = body.unsqueeze(self._later, 2)
            terms = body.op("Where", later, body.unsqueeze(g, 4), body.float32(0.0))
        return body.op("Exp", body.op("CumSum", terms, body.constant(3)))

    def _products(self, a: str, b: str, segment: str, mask: str) -> str:
        """sum over channels of a_i * b_j * segment_ij where ``mask``, else 0: [b, s, r, i, j]."""
        body = self._body
        if self._one_decay:
            products = body.op("Mul", body.op("MatMul", a, _transposed(body, b)), segment)
        else:
            decayed = body.op("Mul", body.op("Mul", body.unsqueeze(a, 4), body.unsqueeze(b, 3)), segment)
            products = body.op("ReduceSum", decayed, body.constant([5]), keepdims=0)
        return body.op("Where", mask, products, body.float32(0.0))

    def _inverse(self, lower: str) -> str:
        """(I + lower)^-1 of strictly lower triangular [..., q, q], from inverses of ever larger diagonal blocks.

        With X the inverse of the diagonal blocks of size n, those of size 2n have the inverse X - X L X, where L is
        what of ``lower`` couples the two halves of each. Every X is a true inverse, so nothing cancels, as a power
        series in ``lower`` would where keys resemble each other.
        """
        body, inverse = self._body, self._identity
        for coupled in self._couplings:
            part = body.op("Where", coupled, lower, body.float32(0.0))
            product = body.op("MatMul", body.op("MatMul", inverse, part), inverse)
            inverse = body.op("Sub", inverse, product)
        return inverse

    def _coupling(self, row: str, column: str, size: int) -> str:
        """Bool [q, q]: i in the second, j in the first half of one block of 2 * size tokens."""
        body = self._body
        halves = [body.op("Div", index, body.constant(size)) for index in (row, column)]
        wholes = [body.op("Div", index, body.constant(2 * size)) for index in (row, column)]
        return body.op("And", body.op("Equal", *wholes), body.op("Greater", *halves))


def _transposed(body: Body, tensor: str) -> str:
    """The last two of five axes swapped; engines fold this into the product that reads it."""
    return body.op("Transpose", tensor, perm=[0, 1, 2, 4, 3])
