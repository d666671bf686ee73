"""What values of a graph mean, found out by computing them for a few steps and comparing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import onnx_ir as ir
import torch

from hybridge.artifact.errors import EngineError
from hybridge.artifact.names import CONTEXT_LENGTHS, INPUT_IDS, PAST_LENGTHS
from hybridge.runtime.engines.torch.program import compile_program
from hybridge.runtime.engines.torch.weights import WeightStore

# (context lengths, past lengths) of rows in caches of _ROOM positions: chunks, a row that takes no part, padding that
# runs over the end of the cache, decoding.
_STEPS = (((3, 1, 0), (0, 4, 2)), ((2, 3, 1), (5, 4, 6)), ((1, 0, 1), (6, 7, 0)))
_ROOM = 7
_Expected = Callable[[Sequence[int], Sequence[int]], torch.Tensor]


def is_last_token(graph: ir.Graph, indices: ir.Value | None) -> bool:
    """Whether ``indices`` [batch, 1] are those of each row's last valid token (0 where it has none)."""
    return _agrees(graph, indices, (), lambda context, past: (torch.tensor(context).clamp(min=1) - 1)[:, None])


def is_visible_keys(graph: ir.Graph, mask: ir.Value | None, window: int | None) -> bool:
    """Whether ``mask`` [batch, 1, seq, max_seq] shows each token the positions up to its own, at most ``window``."""

    def expected(context: Sequence[int], past: Sequence[int]) -> torch.Tensor:
        query = (torch.tensor(past)[:, None] + torch.arange(max(context)))[:, None, :, None]
        key = torch.arange(_ROOM)
        visible = key <= query
        return visible if window is None else visible & (key > query - window)

    return _agrees(graph, mask, (), expected)


def is_cache_update(graph: ir.Graph, present: ir.Value, cache: ir.Value, new: ir.Value) -> bool:
    """Whether ``present`` is ``cache`` [batch, heads, max_seq, size] with the valid tokens of ``new`` in place."""

    def expected(context: Sequence[int], past: Sequence[int]) -> torch.Tensor:
        result, tokens = _values(cache, _ROOM), _values(new, max(context))
        for row, (count, start) in enumerate(zip(context, past, strict=True)):
            result[row, :, start : start + count] = tokens[row, :, :count]
        return result

    return _agrees(graph, present, (new,), expected)


def _agrees(graph: ir.Graph, value: ir.Value | None, inner: Sequence[ir.Value], expected: _Expected) -> bool:
    """Whether ``value``, computed of the graph's inputs and of ``inner`` values, is what is expected in every step."""
    if value is None:
        return False
    try:
        program = compile_program([*graph.inputs, *inner], [value], WeightStore(Path(), torch.device("cpu")))
    except EngineError:
        return False
    read = [item for item in (*graph.inputs, *inner) if item.name in program.inputs]
    for context, past in _STEPS:
        feeds = {str(item.name): _feed(item, context, past) for item in read}
        found, wanted = program.run(feeds)[str(value.name)], expected(context, past)
        if found.shape != wanted.shape or not torch.equal(found.to(wanted.dtype), wanted):
            return False
    return True


def _feed(value: ir.Value, context: Sequence[int], past: Sequence[int]) -> torch.Tensor:
    lengths = {CONTEXT_LENGTHS: context, PAST_LENGTHS: past}
    if value.name in lengths:
        return torch.tensor(lengths[value.name], dtype=torch.int32)
    if value.name == INPUT_IDS:
        return torch.zeros(len(context), max(context), dtype=torch.int64)
    return _values(value, _ROOM if value.is_graph_input() else max(context))


def _values(value: ir.Value, positions: int) -> torch.Tensor:
    """Distinct numbers in the place of keys or values [batch, heads, positions, size]."""
    assert value.shape is not None and len(value.shape) == 4
    heads, size = (int(n) for n in (value.shape[1], value.shape[3]))  # type: ignore[arg-type]
    count = len(_STEPS[0][0]) * heads * positions * size
    offset = 0.0 if value.is_graph_input() else 0.5
    return (torch.arange(count, dtype=torch.float32) + offset).reshape(-1, heads, positions, size)
