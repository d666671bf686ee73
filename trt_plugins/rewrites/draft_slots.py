"""Adds slots for draft tokens to a plain paged graph.

Exported graphs have one slot of states a row. Where draft tokens are checked, an engine that is opened, or built, gives
every recurrent operator its speculative form, in one of two ways (docs/explanation/speculation.md):

snapshot  the state after each token of a row goes to its own slot
replay    rows have their slots in a column that no token writes, so that a check leaves the states unchanged. The
          recurrent operators' inputs for each token become outputs of its graph. A second graph has these operators
          alone: a row of the accepted tokens, with its slot in the column of the last one and -1 in the others, reads
          the state and overwrites it with the state after that token
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import onnx
import onnx_ir as ir
from onnx.utils import Extractor

from hybridge.artifact import names
from hybridge.artifact.bindings import GraphBindings
from hybridge.artifact.errors import UnsupportedError
from hybridge.artifact.paged import ROWS, draft_step_inputs
from hybridge.trt_plugins.catalog import DOMAIN, spec_of
from hybridge.trt_plugins.functions import attach_functions
from hybridge.trt_plugins.specs.packed import PACKED_VERSION, STATE_INDICES, is_packed, is_pool
from hybridge.trt_plugins.specs.speculative import NUM_ACCEPTED_TOKENS, SPECULATIVE_VERSION, is_speculative

_ROW_INPUTS = (names.QUERY_START_LOC, names.STATE_INDICES, names.NUM_ACCEPTED_TOKENS)


@dataclass(frozen=True)
class DraftSlots:
    """Up to ``tokens`` draft tokens after each row's own token, with rollback by replay or from snapshots."""

    tokens: int
    replays: bool = False

    @property
    def columns(self) -> int:
        """Slots of a row: one for each of its tokens, and one that no token writes: a deferred row begins with it."""
        return 2 + self.tokens

    def bindings(self, plain: GraphBindings) -> GraphBindings:
        """The inputs and outputs of a graph with these slots, before what a replay stores; ``plain``: without."""
        pools = [binding for binding in plain.inputs if binding.is_state]
        return replace(plain, inputs=(*draft_step_inputs(self.columns), *pools))


@dataclass(frozen=True)
class ReplayGraphs:
    """check: the graph of a step, whose last outputs are ``stored``. advance: its inputs are those about rows,
    ``stored`` and the pools.

    stored: "stored_<pool>_<input of the operator>", each [tokens, ...].
    """

    check: onnx.ModelProto
    advance: onnx.ModelProto
    stored: tuple[str, ...]


def use_draft_slots(graph: ir.Graph, accepted: ir.Value, slots: Callable[[str], ir.Value | None]) -> list[ir.Node]:
    """Give the recurrent operators of a packed graph their speculative form, in place; returns them.

    ``accepted``: num_accepted_tokens. ``slots``: an operator's new state_indices; None keeps its own.
    """
    found = []
    for node in list(graph):
        if node.domain != DOMAIN or not is_speculative(spec := spec_of(node.op_type, SPECULATIVE_VERSION)):
            continue
        inputs = list(node.inputs)
        inputs.insert(spec.input_index(NUM_ACCEPTED_TOKENS.name), accepted)
        own = slots(node.op_type)
        if own is not None:
            inputs[spec.input_index(STATE_INDICES.name)] = own
        new = ir.Node(DOMAIN, node.op_type, inputs, node.attributes.values(), num_outputs=len(node.outputs))
        new.name = node.name
        graph.insert_before(node, new)
        for before, after in zip(node.outputs, new.outputs, strict=True):
            after.name, after.type, after.shape = before.name, before.type, before.shape
            before.replace_all_uses_with(after, replace_graph_outputs=True)
        graph.remove(node, safe=True)
        found.append(new)
    graph.opset_imports[DOMAIN] = SPECULATIVE_VERSION
    return found


def recurrent_pools(graph: ir.Graph) -> dict[str, str]:
    """The recurrent operator that each pool of states of a packed graph belongs to."""
    found = {}
    for node in graph:
        if node.domain != DOMAIN or STATE_INDICES not in (spec := spec_of(node.op_type, PACKED_VERSION)).inputs:
            continue
        for tensor, value in zip(spec.inputs, node.inputs, strict=False):
            if is_pool(tensor) and value is not None:
                found[str(value.name)] = node.op_type
    return found


def with_snapshots(model: onnx.ModelProto, tokens: int) -> onnx.ModelProto:
    """A plain paged ``model`` whose rows have up to ``tokens`` draft tokens, and a slot for the state after each token.

    UnsupportedError where the graph is of another layout or has no recurrent operator.
    """
    copy, _ = _speculative(model, DraftSlots(tokens))
    return _with_functions(copy)


def with_replay(model: onnx.ModelProto, tokens: int) -> ReplayGraphs:
    """A plain paged ``model`` whose rows have up to ``tokens`` draft tokens, as a check and an advance.

    ``state_indices`` has one column more than a row has tokens, so that a full row has a free one. UnsupportedError as
    in ``with_snapshots``.
    """
    copy, recurrent = _speculative(model, DraftSlots(tokens, replays=True))
    stored: list[str] = []
    pools: dict[str, str] = {}
    for node in recurrent:
        spec = spec_of(node.op_type, SPECULATIVE_VERSION)
        arguments = list(zip(spec.inputs, node.inputs, strict=True))
        # The state, and the tensors of its ring.
        own = [str(value.name) for tensor, value in arguments if is_pool(tensor) and value is not None]
        new = [str(value.name) for tensor, value in zip(spec.outputs, node.outputs, strict=True) if is_pool(tensor)]
        pools |= zip(own, new, strict=True)
        for tensor, value in arguments:
            if value is not None and is_packed(tensor) and value.name not in stored:
                assert value.producer() is not None and not value.is_graph_output(), value.name
                value.name = f"stored_{own[0]}_{tensor.name}"
                copy.graph.outputs.append(value)
                stored.append(value.name)
    check = _with_functions(copy)
    advance = Extractor(check).extract_model([*_ROW_INPUTS, *stored, *pools], list(pools.values()))
    # A stored value may be the output of another replayed operator: a convolution's y is the scan's x.
    for node in advance.graph.node:
        node.output[:] = [f"{name}_again" if name in stored else name for name in node.output]
    advance.graph.name = "advance"
    return ReplayGraphs(check, advance, tuple(stored))


def _speculative(model: onnx.ModelProto, drafts: DraftSlots) -> tuple[ir.Model, Sequence[ir.Node]]:
    """A copy of ``model`` with slots for ``drafts``, without its operators' functions; its recurrent operators."""
    copy = ir.from_proto(model)
    graph = copy.graph
    if graph.opset_imports.get(DOMAIN) != PACKED_VERSION or not recurrent_pools(graph):
        raise UnsupportedError(
            "expected recurrent operators of the paged layout, whose states can be rolled back, found none: export "
            "with `layout='paged'`"
        )
    for function in [key for key in copy.functions if key[0] == DOMAIN]:
        del copy.functions[function]
    (slots,) = (value for value in graph.inputs if value.name == names.STATE_INDICES)
    slots.shape = ir.Shape([ROWS, drafts.columns])
    accepted = ir.Value(name=names.NUM_ACCEPTED_TOKENS, shape=ir.Shape([ROWS]), type=ir.TensorType(ir.DataType.INT32))
    graph.inputs.insert(list(graph.inputs).index(slots) + 1, accepted)
    return copy, use_draft_slots(graph, accepted, lambda op: None)


def _with_functions(model: ir.Model) -> onnx.ModelProto:
    found = ir.to_proto(model)
    attach_functions(found)
    return found
