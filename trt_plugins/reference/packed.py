"""Packed rows through the dense reference of an operator: one meaning for both forms."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from hybridge.artifact.errors import UnsupportedError
from hybridge.trt_plugins.spec import OpSpec
from hybridge.trt_plugins.specs.packed import QUERY_START_LOC, STATE_INDICES, is_packed, is_pool
from hybridge.trt_plugins.specs.speculative import NUM_ACCEPTED_TOKENS


def packed_reference(spec: OpSpec, dense: Callable) -> Callable:
    """The eager form of ``spec``, a packed declaration, from the eager form of its dense one.

    Each row with a slot and tokens is one dense call of batch 1. What no such row owns is zero in outputs of tokens,
    and unchanged in pools. UnsupportedError when query_start_loc and state_indices disagree about the rows.
    """
    start, slots = spec.input_index(QUERY_START_LOC.name), spec.input_index(STATE_INDICES.name)

    def packed(*arguments: object) -> tuple[Tensor, ...]:
        inputs, attributes = arguments[: len(spec.inputs)], arguments[len(spec.inputs) :]
        outputs = [empty_output(inputs[spec.output_source(output)], is_pool(output)) for output in spec.outputs]
        for begin, end, slot in _rows(spec, inputs[start], inputs[slots]):
            row = row_arguments(spec, inputs, begin, end, states_in(spec, inputs, slot))
            for output, whole, part in zip(spec.outputs, outputs, dense(*row, *attributes), strict=True):
                if is_pool(output):
                    whole[slot] = part[0]
                else:
                    whole[begin:end] = part[0]
        return tuple(outputs)

    return packed


def row_bounds(spec: OpSpec, query_start_loc: Tensor, rows: int) -> list[tuple[int, int]]:
    """First token and end of each row; UnsupportedError unless there are rows + 1 bounds."""
    bounds = query_start_loc.tolist()
    if len(bounds) != rows + 1:
        raise UnsupportedError(
            f"{spec.qualified_name}: expected query_start_loc of {rows + 1} bounds for {rows} rows, found "
            f"{len(bounds)}; give the first token of each row, then the end"
        )
    return list(itertools.pairwise(bounds))


def _rows(spec: OpSpec, query_start_loc: object, state_indices: object) -> list[tuple[int, int, int]]:
    """Begin, end and slot of the rows that have tokens and a slot."""
    assert isinstance(query_start_loc, Tensor) and isinstance(state_indices, Tensor)
    bounds = row_bounds(spec, query_start_loc, len(state_indices))
    rows = ((begin, end, slot) for (begin, end), slot in zip(bounds, state_indices.tolist(), strict=True))
    return [(begin, end, slot) for begin, end, slot in rows if begin < end and slot >= 0]


def states_in(spec: OpSpec, inputs: Sequence[object], slot: int) -> dict[str, Tensor]:
    """The states [1, ...] of ``slot`` in every pool, by input name."""
    pools = ((tensor.name, value) for tensor, value in zip(spec.inputs, inputs, strict=True) if is_pool(tensor))
    return {name: pool[None, slot] for name, pool in pools if isinstance(pool, Tensor)}


def row_arguments(
    spec: OpSpec, inputs: Sequence[object], begin: int, end: int, states: Mapping[str, Tensor]
) -> list[Tensor | None]:
    """The inputs of the dense call, batch 1, of the tokens from ``begin`` to ``end`` after ``states``."""
    row: list[Tensor | None] = []
    for tensor, value in zip(spec.inputs, inputs, strict=True):
        assert value is None or isinstance(value, Tensor)
        if tensor.name in (STATE_INDICES.name, NUM_ACCEPTED_TOKENS.name):
            continue
        if tensor == QUERY_START_LOC:
            assert value is not None
            row.append(torch.tensor([end - begin], dtype=torch.int32, device=value.device))
        elif is_packed(tensor) and value is not None:
            row.append(value[None, begin:end])
        else:
            row.append(states.get(tensor.name, value))
    return row


def empty_output(source: object, keeps: bool) -> Tensor:
    """A copy of ``source`` where what no row writes is kept, else zeros like it."""
    assert isinstance(source, Tensor)
    return source.clone() if keeps else torch.zeros_like(source)
