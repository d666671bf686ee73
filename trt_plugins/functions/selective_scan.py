"""``selective_scan`` in standard operators: a scan over chunks, the tokens of a chunk by a parallel prefix scan.

Each token is the affine map state -> decay * state + written. A chunk composes the maps of 2, 4, 8, ... tokens (Hillis
and Steele 1986), with products of decays and sums only: it never divides by an exponential of a sum, so that any decay
is safe. Letters of shapes: b batch, t tokens, g groups, r channels of a group, n state_size, c chunks, q tokens of one.
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx

from hybridge.trt_plugins.functions.body import Body
from hybridge.trt_plugins.functions.lengths import clamped_lengths, valid_tokens
from hybridge.trt_plugins.functions.nodes import TO_END
from hybridge.trt_plugins.functions.signature import Signature
from hybridge.trt_plugins.functions.update_ssm_state import time_step, with_time

# A chunk holds tokens x channels x state_size numbers; a longer one also takes more passes over each.
_CHUNK = 16
_CHUNKS_FIRST = [1, 0, 3, 2, 4, 5]
"""[b, c, q, g, ., .] to [c, b, g, q, ., .]."""


def selective_scan_function(signature: Signature) -> onnx.FunctionProto:
    """Tokens are cut into chunks of min(16, t): one token is one chunk of one."""
    body = Body(signature)
    x, B, C, dt = (with_time(body, name) for name in ("x", "B", "C", "dt"))
    time = body.size(x, 1)
    lengths = clamped_lengths(body, time)
    valid = valid_tokens(body, lengths, time, rank=3)
    step = time_step(body, dt, valid)
    xdt = body.op("Where", valid, body.op("Mul", x, step), body.float32(0.0))
    valid_4d = body.unsqueeze(valid, 3)
    B, C = (body.op("Where", valid_4d, tensor, body.float32(0.0)) for tensor in (B, C))
    state, tokens = body.read("state"), (step, xdt, B, C)
    last, y = _scan(body, tokens, state, time, _CHUNK if signature.has_time else 1)
    skip = body.op("Mul", x, body.read("D"))
    y = body.op("Where", valid, body.op("Add", y, skip), body.float32(0.0))
    if not signature.has_time:
        y = body.op("Squeeze", y, body.constant([1]))
    body.write(y, "y", like="x")
    touched = body.op("Greater", body.unsqueeze(lengths, 1, 2, 3), body.constant(0))
    last = body.op("Where", touched, body.op("Reshape", last, body.op("Shape", state)), state)
    body.write_state(last, lambda count: _states_after(body, tokens, state, count), "state_out", "state")
    return body.function()


def _scan(body: Body, tokens: tuple[str, ...], state: str, time: str, size: int) -> tuple[str, str]:
    """The last state [b, g, 1, r, n] and y [b, t, channels] without the skip connection, in chunks of ``size``."""
    layout = _Layout.of(body, tokens, time, size)
    chunk = _Chunk(body, layout, state)
    last, y = body.scan(chunk.step, chunk.state, layout.chunks(body, tokens), rank=5)
    y = body.op("Transpose", y, perm=[1, 0, 3, 2, 4, 5])
    y = body.reshape(y, layout.rows, body.constant([-1]), body.size(tokens[1], 2))
    return last, body.slice(y, 1, body.constant([0]), time)


def _states_after(body: Body, tokens: tuple[str, ...], state: str, count: str) -> str:
    """The states [b, count, 1, channels, n] after each of the first ``count`` tokens, one after another."""
    tokens = tuple(body.slice(tensor, 1, body.constant([0]), count) for tensor in tokens)
    layout = _Layout.of(body, tokens, count, 1)
    chunk = _Chunk(body, layout, state)

    def step(before: str, slices: list[str]) -> tuple[str, str]:
        after = chunk.states(before, slices)
        return after, body.op("Identity", after)

    _, states = body.scan(step, chunk.state, layout.chunks(body, tokens), rank=5)
    states = body.op("Transpose", states, perm=[1, 0, 2, 3, 4, 5])
    return body.reshape(states, layout.rows, count, body.size(state, 1, 4))


@dataclass(frozen=True)
class _Layout:
    """Sizes of the chunks, as int64 tensors of one element; ``most`` is the number of tokens that a chunk may have."""

    rows: str
    count: str
    length: str
    pads: str
    groups: str
    most: int

    @classmethod
    def of(cls, body: Body, tokens: tuple[str, ...], time: str, most: int) -> _Layout:
        one, size = body.constant([1]), body.constant([most])
        # Both grow with t, so that an engine bounds each by its value at the longest t.
        count = body.op("Div", body.op("Sub", body.op("Add", time, size), one), size)
        length = body.op("Min", time, size)
        missing = body.op("Sub", body.op("Mul", count, length), time)
        pads = body.concat(body.constant([0]), missing)
        return cls(body.size(tokens[0], 0), count, length, pads, body.size(tokens[2], 2), most)

    def chunks(self, body: Body, tokens: tuple[str, ...]) -> tuple[str, ...]:
        """step and xdt [c, b, g, q, r, 1], B [c, b, g, q, 1, n], C [c, b, g, q, n, 1]; zero after the last token."""
        step, xdt, B, C = tokens
        one, minus, sizes = body.constant([1]), body.constant([-1]), body.size(B, 3)
        shapes = ((step, minus, one), (xdt, minus, one), (B, one, sizes), (C, sizes, one))
        return tuple(self._chunked(body, tensor, body.concat(*last)) for tensor, *last in shapes)

    def _chunked(self, body: Body, tensor: str, last: str) -> str:
        padded = body.op("Pad", tensor, self.pads, "", body.constant([1]))
        split = body.reshape(padded, self.rows, self.count, self.length, self.groups, last)
        return body.op("Transpose", split, perm=_CHUNKS_FIRST)


class _Chunk:
    """One step of the scan over chunks. ``state`` [b, g, 1, r, n] is that before the first one."""

    def __init__(self, body: Body, layout: _Layout, state: str) -> None:
        self._body, self._length = body, layout.length
        one, minus, n = body.constant([1]), body.constant([-1]), body.size(state, 3)
        self._log_decay = body.reshape(body.read("A"), layout.groups, one, minus, n)
        self.state = body.reshape(state, layout.rows, layout.groups, one, minus, n)
        self._shifts = [1 << level for level in range((layout.most - 1).bit_length())]

    def step(self, state: str, slices: list[str]) -> tuple[str, str]:
        """(state, (step, xdt, B, C)) to (next state, y [b, g, q, r, 1])."""
        body = self._body
        states = self.states(state, slices)
        last = body.slice(states, 2, body.constant([-1]), body.constant([TO_END]))
        return last, body.op("MatMul", states, slices[3])

    def states(self, state: str, slices: list[str]) -> str:
        """The states [b, g, q, r, n] after each token of the chunk."""
        body, (step, xdt, B, _) = self._body, slices
        decay = body.op("Exp", body.op("Mul", step, self._log_decay))
        written = body.op("Mul", xdt, B)
        for shift in self._shifts:
            written = body.op("Add", written, body.op("Mul", decay, self._earlier(written, shift, 0.0)))
            decay = body.op("Mul", decay, self._earlier(decay, shift, 1.0))
        return body.op("Add", written, body.op("Mul", decay, state))

    def _earlier(self, tensor: str, shift: int, fill: float) -> str:
        """The values of the token ``shift`` positions earlier, ``fill`` before the first."""
        body = self._body
        padded = body.op("Pad", tensor, body.constant([shift, 0]), body.float32(fill), body.constant([2]))
        return body.slice(padded, 2, body.constant([0]), self._length)
