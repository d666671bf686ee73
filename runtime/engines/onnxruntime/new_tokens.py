"""Caches as graph outputs: whole, or only the keys and values of a step's own tokens.

A graph returns every cache as a second array, of all layers at once. Long caches would take twice their memory, and
unused positions would become resident.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from hybridge.artifact.bindings import Binding
from hybridge.runtime.engines.onnxruntime.graph_edit import add_initializer, add_input

POSITIONS = "engine.new_positions"


def return_new_tokens(graph: ir.Graph, caches: Sequence[Binding]) -> None:
    """Replace the output of each cache [batch, heads, max_seq, size] by its new tokens [batch, heads, seq, size].

    A new input names their positions [batch, 1, seq, 1] int64.
    """
    positions = add_input(graph, POSITIONS, ir.DataType.INT64, ("batch", 1, "seq", 1))
    outputs = {value.name: place for place, value in enumerate(graph.outputs)}
    for cache in caches:
        place = outputs[cache.replaced_by]
        whole = graph.outputs[place]
        heads, size = cache.shape[1], cache.shape[3]
        shape = add_initializer(graph, f"engine.shape.{whole.name}", np.array([1, heads, 1, size], np.int64))
        indices = ir.node("Expand", [positions, shape])
        taken = ir.node("GatherElements", [whole, indices.outputs[0]], {"axis": 2})
        new = taken.outputs[0]
        new.name, whole.name = whole.name, f"engine.whole.{whole.name}"
        new.type, new.shape = whole.type, ir.Shape(("batch", heads, "seq", size))
        # Right after the cache's own node, so that the cache is freed before the next layer allocates its own.
        producer = whole.producer()
        assert producer is not None
        graph.insert_after(producer, (indices, taken))
        graph.outputs[place] = new


def new_positions(past_lengths: np.ndarray, tokens: int, max_seq: int) -> np.ndarray:
    """The positions [batch, 1, tokens, 1] int64 of a step's tokens; padding beyond the last position gets that one."""
    positions = past_lengths[:, None].astype(np.int64) + np.arange(tokens)
    return np.minimum(positions, max_seq - 1)[:, None, :, None]
