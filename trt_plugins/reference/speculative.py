"""Draft tokens through the dense reference of an operator, one by one, a state kept after each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from torch import Tensor

from hybridge.trt_plugins.reference.packed import empty_output, row_arguments, row_bounds, states_in
from hybridge.trt_plugins.spec import OpSpec
from hybridge.trt_plugins.specs.packed import QUERY_START_LOC, STATE_INDICES, is_pool
from hybridge.trt_plugins.specs.speculative import NUM_ACCEPTED_TOKENS
from hybridge.trt_plugins.specs.state_8bit import is_8bit


@dataclass(frozen=True)
class _Part:
    """Tokens of a row that are one dense call. slot: where the state after them goes, -1: nowhere."""

    begin: int
    end: int
    slot: int


def speculative_reference(spec: OpSpec, dense: Callable) -> Callable:
    """The eager form of ``spec``, a speculative declaration, from the eager form of its dense one.

    A row of at most as many tokens as it has slots is a dense call for each token, which begins with the state that
    the call before it ended with, in the pool's type; a longer row is one call. With states of 8 bits, which a call
    rounds once, the call for a token has the row's tokens up to it. UnsupportedError as of packed rows.
    """
    from_start = is_8bit(spec)

    def speculative(*arguments: object) -> tuple[Tensor, ...]:
        inputs, attributes = arguments[: len(spec.inputs)], arguments[len(spec.inputs) :]
        outputs = [empty_output(inputs[spec.output_source(output)], is_pool(output)) for output in spec.outputs]
        for slot, parts in _rows(spec, inputs):
            states = states_in(spec, inputs, slot)
            for part in parts:
                begin = parts[0].begin if from_start else part.begin
                row = row_arguments(spec, inputs, begin, part.end, states)
                for output, whole, value in zip(spec.outputs, outputs, dense(*row, *attributes), strict=True):
                    if not is_pool(output):
                        whole[part.begin : part.end] = value[0, part.begin - begin :]
                        continue
                    if not from_start:
                        states[spec.inputs[spec.output_source(output)].name] = value
                    if part.slot >= 0:
                        whole[part.slot] = value[0]
        return tuple(outputs)

    return speculative


def slots_of_rows(spec: OpSpec, inputs: tuple[object, ...]) -> tuple[list[int], list[int]]:
    """The slots that the rows with tokens read, and those that they write."""
    rows = [(slot, parts) for slot, parts in _rows(spec, inputs) if parts]
    return [slot for slot, _ in rows], [part.slot for _, parts in rows for part in parts if part.slot >= 0]


def _rows(spec: OpSpec, inputs: tuple[object, ...]) -> Iterator[tuple[int, list[_Part]]]:
    """The slot that each active row reads, and the row's parts."""
    found = [inputs[spec.input_index(t.name)] for t in (QUERY_START_LOC, STATE_INDICES, NUM_ACCEPTED_TOKENS)]
    starts, indices, accepted = (tensor for tensor in found if isinstance(tensor, Tensor))
    columns = indices.shape[1]
    bounds = row_bounds(spec, starts, len(indices))
    for (begin, end), slots, count in zip(bounds, indices.tolist(), accepted.tolist(), strict=True):
        read = slots[min(max(count, 1), columns) - 1]
        if read < 0:
            continue
        if end - begin > columns:
            yield read, [_Part(begin, end, read)]
        else:
            yield read, [_Part(t, t + 1, slot) for t, slot in zip(range(begin, end), slots, strict=False)]
