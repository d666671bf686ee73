"""``selective_scan`` in standard operators: a scan over chunks, each with its tokens unrolled.

A form without the scan would hold tokens x channels x state_size numbers several times: at 4,096 tokens of 1,536
channels it took 3 times as long in ONNX Runtime, and 14 times the memory. Letters of shapes: b batch, t tokens,
g groups, r channels of a group, n state_size, c chunks, q tokens of one.
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx

from hybridge.trt_plugins.functions.body import Body
from hybridge.trt_plugins.functions.lengths import clamped_lengths, valid_tokens
from hybridge.trt_plugins.functions.nodes import TO_END
from hybridge.trt_plugins.functions.signature import Signature
from hybridge.trt_plugins.functions.update_ssm_state import time_step, with_time

# A chunk has this many updates of the state as separate nodes, and holds tokens x channels x state_size numbers.
_CHUNK = 16
_CHUNKS_FIRST = [1, 0, 2, 3, 4, 5]
"""[b, c, q, g, ., .] to [c, b, q, g, ., .]."""


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
    """The last state [b, 1, channels, n] and y [b, t, channels] without the skip connection, in chunks of ``size``."""
    layout = _Layout.of(body, tokens, state, time, size)
    chunk = _Chunk(body, layout)
    last, y = body.scan(chunk.step, layout.initial_state(body, state), layout.chunks(body, tokens), rank=5)
    y = body.op("Transpose", y, perm=_CHUNKS_FIRST)
    y = body.reshape(y, layout.rows, body.constant([-1]), body.size(tokens[1], 2))
    return layout.channels_first(body, last), body.slice(y, 1, body.constant([0]), time)


def _states_after(body: Body, tokens: tuple[str, ...], state: str, count: str) -> str:
    """The states [b, count, 1, channels, n] after each of the first ``count`` tokens, one after another."""
    tokens = tuple(body.slice(tensor, 1, body.constant([0]), count) for tensor in tokens)
    layout = _Layout.of(body, tokens, state, count, 1)
    chunk = _Chunk(body, layout)

    def step(before: str, slices: list[str]) -> tuple[str, str]:
        after = chunk.states(before, slices)
        return after, body.op("Identity", after)

    _, states = body.scan(step, layout.initial_state(body, state), layout.chunks(body, tokens), rank=5)
    states = body.op("Transpose", states, perm=[1, 0, 2, 3, 5, 4])
    return body.reshape(states, layout.rows, count, body.size(state, 1, 4))


@dataclass(frozen=True)
class _Layout:
    """Sizes of the chunks, as int64 tensors of one element; ``most`` is the number of tokens that a chunk may have."""

    rows: str
    count: str
    length: str
    pads: str
    groups: str
    state_size: str
    most: int

    @classmethod
    def of(cls, body: Body, tokens: tuple[str, ...], state: str, time: str, most: int) -> _Layout:
        size = body.constant([most])
        # Both grow with t, so that an engine bounds each by its value at the longest t.
        count, length = body.ceil_div(time, size), body.op("Min", time, size)
        missing = body.op("Sub", body.op("Mul", count, length), time)
        pads = body.concat(body.constant([0]), missing)
        groups, state_size = body.size(tokens[2], 2), body.size(state, 3)
        return cls(body.size(tokens[0], 0), count, length, pads, groups, state_size, most)

    def chunks(self, body: Body, tokens: tuple[str, ...]) -> tuple[str, ...]:
        """step and xdt [c, b, q, g, 1, r], B [c, b, q, g, n, 1], C [c, b, q, g, 1, n]; zero after the last token."""
        step, xdt, B, C = tokens
        one, minus = body.constant([1]), body.constant([-1])
        shapes = ((step, one, minus), (xdt, one, minus), (B, self.state_size, one), (C, one, self.state_size))
        return tuple(self._chunked(body, tensor, body.concat(*last)) for tensor, *last in shapes)

    def channels_last(self, body: Body, tensor: str, *leading: str) -> str:
        """[..., channels, n] as [*leading, g, n, r]: every product runs along the channels."""
        split = body.reshape(tensor, *leading, self.groups, body.constant([-1]), self.state_size)
        axes = len(leading)
        return body.op("Transpose", split, perm=[*range(axes + 1), axes + 2, axes + 1])

    def initial_state(self, body: Body, state: str) -> str:
        """[b, 1, channels, n] as [b, 1, g, n, r]."""
        return self.channels_last(body, state, self.rows, body.constant([1]))

    def channels_first(self, body: Body, state: str) -> str:
        """[b, 1, g, n, r] as [b, 1, g, r, n]."""
        return body.op("Transpose", state, perm=[0, 1, 2, 4, 3])

    def _chunked(self, body: Body, tensor: str, last: str) -> str:
        padded = body.op("Pad", tensor, self.pads, "", body.constant([1]))
        split = body.reshape(padded, self.rows, self.count, self.length, self.groups, last)
        return body.op("Transpose", split, perm=_CHUNKS_FIRST)


class _Chunk:
    """One step of the scan over chunks, of states [b, 1, g, n, r]."""

    def __init__(self, body: Body, layout: _Layout) -> None:
        self._body, self._most = body, layout.most
        self._log_decay = layout.channels_last(body, body.read("A"))

    def step(self, state: str, slices: list[str]) -> tuple[str, str]:
        """(state, (step, xdt, B, C)) to (next state, y [b, q, g, 1, r])."""
        body = self._body
        states = self.states(state, slices)
        last = body.slice(states, 1, body.constant([-1]), body.constant([TO_END]))
        return last, body.op("MatMul", slices[3], states)

    def states(self, state: str, slices: list[str]) -> str:
        """The states [b, q, g, n, r] after each token of the chunk."""
        body, tokens = self._body, slices[:3]
        if self._most == 1:
            return self._after(state, *tokens)
        after = []
        for token in range(self._most):
            # Empty after the last token of a shorter chunk, and so is the state after it.
            begin, end = body.constant([token]), body.constant([token + 1])
            state = self._after(state, *(body.slice(tensor, 1, begin, end) for tensor in tokens))
            after.append(state)
        return body.concat(*after, axis=1)

    def _after(self, state: str, step: str, xdt: str, B: str) -> str:
        """The state after one token."""
        body = self._body
        decay = body.op("Exp", body.op("Mul", step, self._log_decay))
        return body.op("Add", body.op("Mul", xdt, B), body.op("Mul", decay, state))
