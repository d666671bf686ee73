"""Replaces packed recurrent operators of a paged graph by the engine's dense bodies.

A run of this engine is regular: one row, or one token of every row. So a Reshape makes its tokens rows, and a body for
dense rows does the rest. If the rows of a run have contiguous slots, in order, the session gets that part of each pool
as the states of the rows, and updates it in place. Otherwise the states are gathered, and scattered back into the
pool. An operator without a body keeps the artifact's own function. Rows of a few tokens each, whose
states are deferred, become a rectangle by a Gather (ragged_rows.py).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from hybridge.artifact.bindings import SEQ
from hybridge.artifact.errors import EngineError
from hybridge.artifact.paged import ROWS
from hybridge.runtime.engines.onnxruntime.deferred_states import DeferredRing, DeferredScales, DeferredState
from hybridge.runtime.engines.onnxruntime.graph_edit import Inserter, fixed_shape, replace_node
from hybridge.runtime.engines.onnxruntime.kernels import Kernels
from hybridge.runtime.engines.onnxruntime.op_bodies import BODIES
from hybridge.runtime.engines.onnxruntime.paged_forms import PagedForm
from hybridge.runtime.engines.onnxruntime.ragged_rows import rows_from_tokens, tokens_from_rows
from hybridge.runtime.engines.onnxruntime.replay_bodies import REPLAY_BODIES, recurrent_nodes
from hybridge.runtime.engines.onnxruntime.replay_values import Deferred, Stored
from hybridge.runtime.engines.onnxruntime.snapshot_bodies import SNAPSHOT_BODIES
from hybridge.runtime.engines.onnxruntime.state_8bit import WideNode
from hybridge.runtime.engines.onnxruntime.state_ring import TRANSPOSED_OPERATOR, FlushedNode
from hybridge.runtime.engines.onnxruntime.update_ssm_state import POOL
from hybridge.trt_plugins.catalog import DOMAIN, spec_of
from hybridge.trt_plugins.spec import TensorSpec
from hybridge.trt_plugins.specs.packed import (
    PACKED_VERSION,
    QUERY_START_LOC,
    STATE_INDICES,
    has_rows,
    is_packed,
    is_pool,
)
from hybridge.trt_plugins.specs.state_8bit import is_8bit
from hybridge.trt_plugins.specs.state_forms import base_name
from hybridge.trt_plugins.specs.state_ring import is_ring

_FLOAT = ir.TensorType(ir.DataType.FLOAT)


def use_dense_bodies(model: ir.Model, kernels: Kernels, form: PagedForm, neighbours: bool) -> frozenset[str]:
    """Replace every node that has a body for the installed ONNX Runtime, those without rows as they are.

    ``form``: a step is one row of any number of tokens (ONE_ROW), or every row has one token. ``neighbours``: the rows
    have neighbouring slots. Returns the pools of which the graph gets only the part of its rows.
    """
    parts: set[str] = set()
    for node in list(model.graph):
        if node.domain != DOMAIN or node.op_type not in BODIES:
            continue
        if has_rows(spec_of(node.op_type, PACKED_VERSION)):
            packed = _PackedNode(model.graph, node, form, neighbours)
            pools = packed.pools
            if packed.replace(kernels) and neighbours:
                parts |= pools
            continue
        outputs = BODIES[node.op_type](node, Inserter(model.graph, node), kernels, False)
        if outputs is not None:
            replace_node(node, outputs)
    return frozenset(parts)


def defer_states(
    model: ir.Model, kernels: Kernels, form: PagedForm, count: int | None, snapshots: frozenset[str]
) -> tuple[DeferredState, ...]:
    """Make a graph leave the states unchanged and return what is needed to advance them.

    ``form``: ONE_ROW, one row of ``count`` tokens, or RAGGED, rows of up to ``count``, None for a number that is an
    input of the graph. snapshots: operators of which this is the state after each token, which needs a ``count``.
    EngineError where an operator has no body that does.
    """
    nodes = [_PackedNode(model.graph, node, form, neighbours=True) for node in recurrent_nodes(model)]
    return tuple(node.replace_with_deferred(kernels, count, snapshots) for node in nodes)


class _PackedNode:
    """A packed node that is replaced by a dense body."""

    def __init__(self, graph: ir.Graph, node: ir.Node, form: PagedForm, neighbours: bool) -> None:
        self._graph, self._node, self._form, self._neighbours = graph, node, form, neighbours
        self._spec = spec_of(node.op_type, PACKED_VERSION)
        self._insert = Inserter(graph, node)
        slots = node.inputs[self._spec.input_index(STATE_INDICES.name)]
        assert slots is not None
        self._slots = slots

    @property
    def _is_one_row(self) -> bool:
        return self._form is PagedForm.ONE_ROW

    @property
    def pools(self) -> set[str]:
        """Names of the node's pools."""
        inputs = zip(self._spec.inputs, self._node.inputs, strict=True)
        return {str(value.name) for tensor, value in inputs if is_pool(tensor) and value is not None}

    def replace(self, kernels: Kernels) -> bool:
        """Replace the node by its body; False, without a change, if there is none."""
        dense, shapes = self._dense_node()
        found = BODIES[self._node.op_type](dense, Inserter(self._graph, dense), kernels, False)
        self._graph.remove(dense, safe=True)
        if found is None:
            for pool, shape in shapes.items():
                pool.shape = shape  # the function takes the whole pool
            return False
        replace_node(self._node, [self._packed_output(index, value) for index, value in enumerate(found)])
        return True

    def replace_with_deferred(self, kernels: Kernels, count: int | None, snapshots: frozenset[str]) -> DeferredState:
        """Replace the node by the body for ``count`` tokens that does not change the pool; EngineError without one.

        The graph then returns the stored values of the tokens instead of the pool.
        """
        dense, _ = self._dense_node()
        is_snapshot = self._node.op_type in snapshots
        body = self._states_after if is_snapshot else REPLAY_BODIES.get(base_name(self._node.op_type))
        wide = WideNode.of(dense, Inserter(self._graph, dense), kernels) if is_8bit(self._spec) else None
        flushed = FlushedNode.of(dense, Inserter(self._graph, dense)) if is_ring(self._spec) else None
        node = flushed.node if flushed is not None else dense if wide is None else wide.node
        found = None if body is None else body(node, Inserter(self._graph, node), kernels, count)
        if found is not None and wide is not None and is_snapshot:
            found = _rounded(found, wide, self._insert)
        if found is not None and flushed is not None:
            found = self._with_empty_rings(found, is_snapshot)
        for temporary in dict.fromkeys((node, dense)):
            self._graph.remove(temporary, safe=True)
        if found is None:
            raise EngineError(
                f"expected an ONNX Runtime that can roll back draft tokens of {self._node.op_type}, found one without "
                "the operators: install onnxruntime 1.24 or later, or run without speculation"
            )
        pools = [value for tensor, value in self._given if is_pool(tensor) and value is not None]
        pool = pools[0]
        assert pool.name is not None
        stored = []
        # Snapshots of a state with a ring are those of the state and of the ring's length.
        of_snapshot = pools if flushed is None else (pools[0], pools[-1])
        for index, each in enumerate(found.stored):
            # A separate graph output: the value may already be the output of another name.
            output = self._insert.op("Identity", each.value)
            output.name, output.type = f"{pool.name}.stored_{index}", of_snapshot[index].type if is_snapshot else _FLOAT
            output.shape = ir.Shape([ROWS, SEQ, *each.shape])
            self._graph.outputs.append(output)
            stored.append((output.name, each.shape))
        for value in self._node.outputs[1:]:
            self._graph.outputs.remove(value)
        replace_node(self._node, [self._packed_output(0, found.y), *pools])
        scales = None if wide is None else DeferredScales(str(pools[1].name), wide.dtype, wide.axis)
        ring = None if flushed is None else _ring_of(pools)
        state = DeferredState(
            self._node.op_type, pool.name, found.state_shape, tuple(stored), is_snapshot, scales, ring, found.weights
        )
        for value, part in zip(pools, state.pools_read, strict=True):
            value.shape = ir.Shape([ROWS, *part.shape])
        return state

    def _with_empty_rings(self, found: Deferred, is_snapshot: bool) -> Deferred:
        """``found``, of the plain operator, with states in the order of the declaration; snapshots have empty rings."""
        shape = next(fixed_shape(value) for tensor, value in self._given if is_pool(tensor))
        assert shape is not None
        sizes, insert = tuple(size or 1 for size in shape[1:]), self._insert
        if not is_snapshot:
            return Deferred(found.y, found.stored, sizes, found.weights)
        (states,) = found.stored
        swaps = base_name(self._node.op_type) == TRANSPOSED_OPERATOR
        value = insert.op("Transpose", states.value, perm=[0, 1, 2, 4, 3]) if swaps else states.value
        rows = insert.op("Concat", insert.op("Shape", value, start=0, end=2), insert.ints(1), axis=0)
        empty = insert.op("Expand", insert.constant(np.zeros(1, np.int32)), rows)
        return Deferred(found.y, (Stored(value, sizes), Stored(empty, (1,))), sizes, found.weights)

    @property
    def _given(self) -> list[tuple[TensorSpec, ir.Value | None]]:
        return list(zip(self._spec.inputs, self._node.inputs, strict=True))

    def _states_after(self, dense: ir.Node, insert: Inserter, kernels: Kernels, count: int | None) -> Deferred | None:
        """A ReplayBody of the body for snapshots: the tokens store the state after each."""
        assert count is not None, "a body for snapshots is made for a number of tokens"
        body = SNAPSHOT_BODIES.get(dense.op_type)
        found = None if body is None else body(dense, insert, kernels, count)
        # The first pool is that of the states.
        shape = next(fixed_shape(value) for tensor, value in self._given if is_pool(tensor))
        if found is None or shape is None:
            return None
        y, states = found
        sizes = tuple(size or 1 for size in shape[1:])
        after = insert.op("Concat", *(insert.op("Unsqueeze", state, insert.ints(1)) for state in states), axis=1)
        return Deferred(y, (Stored(after, sizes),), sizes)

    def _dense_node(self) -> tuple[ir.Node, dict[ir.Value, ir.Shape | None]]:
        """A temporary dense operator before the node, and the shapes of the pools before it."""
        node, spec = self._node, self._spec
        given = self._given
        shapes = {value: value.shape for tensor, value in given if value is not None and is_pool(tensor)}
        inputs = [
            self._dense_input(tensor, value)
            for tensor, value in given
            if tensor.name not in (QUERY_START_LOC.name, STATE_INDICES.name)
        ]
        # The slots replace the lengths, which bodies of regular rows do not read.
        inputs.append(self._slots)
        dense = ir.node(node.op_type, inputs, dict(node.attributes), domain=DOMAIN, num_outputs=len(spec.outputs))
        self._graph.insert_before(node, dense)
        for output, value in zip(spec.outputs, dense.outputs, strict=True):
            source = inputs[spec.output_source(output)]
            assert source is not None
            value.type, value.shape = source.type, source.shape
        return dense, shapes

    def _dense_input(self, tensor: TensorSpec, value: ir.Value | None) -> ir.Value | None:
        """An input as rows: of tokens, of states, or unchanged if the rows share it."""
        if value is None or value.shape is None:
            return value
        if is_packed(tensor):
            if self._form is PagedForm.RAGGED:
                return rows_from_tokens(self._insert, value)
            one_row, (tokens, *rest) = self._is_one_row, value.shape.dims
            rows = self._insert.op("Unsqueeze", value, self._insert.ints(0 if one_row else 1))
            rows.type = value.type
            rows.shape = ir.Shape([1, tokens, *rest] if one_row else [tokens, 1, *rest])
            return rows
        return self._states(tensor, value) if is_pool(tensor) else value

    def _states(self, tensor: TensorSpec, pool: ir.Value) -> ir.Value:
        sources = [self._spec.output_source(output) for output in self._spec.outputs]
        output = self._node.outputs[sources.index(self._spec.input_index(tensor.name))]
        states = pool if self._neighbours else self._insert.op("Gather", pool, self._slots, axis=0)
        assert pool.shape is not None and self._slots.shape is not None
        states.type = pool.type
        states.shape = ir.Shape([1 if self._is_one_row else self._slots.shape.dims[0], *pool.shape.dims[1:]])
        states.meta[POOL] = (pool, output)
        return states

    def _packed_output(self, index: int, value: ir.Value) -> ir.Value:
        """An output as tokens, or new states, in their pool unless the graph gets only the rows' part."""
        tensor, old, insert = self._spec.outputs[index], self._node.outputs[index], self._insert
        if is_pool(tensor):
            if self._neighbours:
                return value
            indices = insert.op("Unsqueeze", insert.op("Cast", self._slots, to=int(ir.DataType.INT64)), insert.ints(1))
            return insert.op("ScatterND", self._node.inputs[self._spec.output_source(tensor)], indices, value)
        assert old.shape is not None
        sizes = [size if isinstance(size, int) else -1 for size in old.shape.dims[1:]]
        tokens = insert.op("Reshape", value, insert.ints(-1, *sizes))
        if self._form is PagedForm.RAGGED:
            tokens = tokens_from_rows(insert, tokens)
        tokens.type, tokens.shape = old.type, old.shape
        return tokens


def _ring_of(pools: Sequence[ir.Value]) -> DeferredRing:
    """The ring of the first of ``pools``, those of one operator."""
    _, *tensors, lengths = pools
    shapes = (tuple(size or 1 for size in (fixed_shape(value) or ())[1:]) for value in tensors)
    return DeferredRing(tuple(zip((str(value.name) for value in tensors), shapes, strict=True)), str(lengths.name))


def _rounded(deferred: Deferred, wide: WideNode, insert: Inserter) -> Deferred:
    """``deferred``, whose tokens store float32 states, with what the pools of ``wide`` hold of these."""
    (states,) = deferred.stored
    shape = list(states.shape)
    del shape[wide.axis]
    values, scales = wide.rounded(insert, states.value)
    return Deferred(deferred.y, (Stored(values, states.shape), Stored(scales, tuple(shape))), deferred.state_shape)
