"""Rewrites a paged artifact's graph for one session."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import onnx_ir as ir

from hybridge.artifact.bindings import SEQ
from hybridge.artifact.config import RuntimeConfig
from hybridge.artifact.paged import ROW_BOUNDS, ROWS, TOKENS
from hybridge.runtime.engines.onnxruntime.columns import put_weights_left
from hybridge.runtime.engines.onnxruntime.deferred_states import DeferredState
from hybridge.runtime.engines.onnxruntime.fixed_axes import fix_axes
from hybridge.runtime.engines.onnxruntime.graph_edit import remove_dead_code, state_pairs
from hybridge.runtime.engines.onnxruntime.graph_weights import serialised_model
from hybridge.runtime.engines.onnxruntime.in_place import updates_in_place
from hybridge.runtime.engines.onnxruntime.kernels import Kernels
from hybridge.runtime.engines.onnxruntime.opset import lower_opset
from hybridge.runtime.engines.onnxruntime.packed_operators import read_packed_tokens, take_several_rows
from hybridge.runtime.engines.onnxruntime.paged_attention import POOL_ORDER, use_paged_attention
from hybridge.runtime.engines.onnxruntime.paged_forms import PagedForm
from hybridge.runtime.engines.onnxruntime.paged_recurrent import defer_states, use_dense_bodies
from hybridge.runtime.engines.onnxruntime.reshapes import join_reshapes
from hybridge.runtime.engines.onnxruntime.row_checkpoints import return_checkpoints
from hybridge.runtime.engines.onnxruntime.session_graph import PagedGraph
from hybridge.runtime.engines.onnxruntime.split_columns import read_columns
from hybridge.runtime.engines.onnxruntime.stateless_layers import rewrite_stateless_layers
from hybridge.runtime.engines.onnxruntime.update_ssm_state import TRANSPOSED_STATE

# A pool of recurrent states with its last two axes swapped.
_TRANSPOSED = (0, 1, 3, 2)
_FIXED_AXES: Mapping[PagedForm, Mapping[str, int]] = MappingProxyType(
    {
        PagedForm.ONE_TOKEN: {TOKENS: 1, ROWS: 1, ROW_BOUNDS: 2},
        PagedForm.TOKEN_PER_ROW: {},
        PagedForm.ONE_ROW: {ROWS: 1, ROW_BOUNDS: 2},
        PagedForm.RAGGED: {},
    }
)


@dataclass(frozen=True)
class RewrittenPaged:
    """A model ready for a session.

    The other fields are those of ``PagedGraph``.
    """

    model: ir.Model
    inputs: frozenset[str]
    in_place: frozenset[str]
    parts: frozenset[str]
    layouts: Mapping[str, tuple[int, ...]]
    deferred: tuple[DeferredState, ...] = ()

    def serialised(self, operators: Mapping[str, bool]) -> PagedGraph:
        """The graph in the form that sessions are created from; its model is changed."""
        model, weights = serialised_model(self.model)
        pools = (self.inputs, self.in_place, self.parts, self.layouts)
        return PagedGraph(model, weights, *pools, operators, self.deferred)


def rewrite_paged(
    model: ir.Model,
    config: RuntimeConfig,
    form: PagedForm,
    kernels: Kernels,
    neighbours: bool,
    tokens: int = 0,
    packs: bool = False,
    defers: bool = False,
    shown: Sequence[str] = (),
    snapshots: frozenset[str] = frozenset(),
    exact: bool = False,
) -> RewrittenPaged:
    """Rewrite ``model`` (it is changed) for steps of one row, or where it can of several (ONE_ROW), of one token per
    row, of one token, or of rows of a few tokens each (RAGGED; without states, or with ``defers``).

    ``neighbours``: the rows have neighbouring slots, in their order. ``tokens``: those of the one row, 2 or more, of
    RAGGED the longest; 0: any number. ``packs``: the session packs its weights. ``defers``: instead of new states
    the graph returns what a replay reads, or for operators in ``snapshots`` the state after each token. ``shown``:
    inner values that it also returns. ``exact``: inputs of quantised weights are not rounded. Where it can, a graph for
    one row of any number of tokens also returns states after some of these (row_checkpoints.py). EngineError when the
    installed ONNX Runtime cannot run the result.
    """
    rewrite_stateless_layers(model, kernels, form is PagedForm.ONE_TOKEN, exact, shown)
    use_paged_attention(model, form, None if form is PagedForm.RAGGED else kernels)
    deferred = defer_states(model, kernels, form, tokens or None, snapshots) if defers else ()
    parts = use_dense_bodies(model, kernels, form, neighbours)
    if form is not PagedForm.RAGGED:
        read_packed_tokens(model, form is PagedForm.ONE_ROW)
    # Draft tokens are few, and their states need a run of their own.
    is_prompt = form is PagedForm.ONE_ROW and not tokens and not defers
    if not (is_prompt and neighbours and _take_prompts(model, config)):
        fix_axes(model, {**_FIXED_AXES[form], **_axes_of(form, tokens)})
    join_reshapes(model)
    read_columns(model)
    if not packs and (tokens or form in (PagedForm.TOKEN_PER_ROW, PagedForm.RAGGED)):
        put_weights_left(model)
    remove_dead_code(model)
    for value in [value for value in model.graph.inputs if not value.uses()]:
        model.graph.inputs.remove(value)
    lower_opset(model, kernels)
    return _rewritten(model, config, parts, deferred)


def _take_prompts(model: ir.Model, config: RuntimeConfig) -> bool:
    """Let the graph for one row return states after some tokens, and where it can take several rows: whether it can."""
    recurrent, growing = ({b.name for b in config.bindings.states if b.grows is grows} for grows in (False, True))
    several = take_several_rows(model, recurrent, growing)
    return_checkpoints(model.graph, recurrent)
    return several


def _rewritten(
    model: ir.Model, config: RuntimeConfig, parts: frozenset[str], deferred: tuple[DeferredState, ...]
) -> RewrittenPaged:
    """The rewritten model with what its sessions have to know of its pools."""
    left_alone = frozenset(pool.name for state in deferred for pool in state.pools_read)
    replaced_by = {b.name: str(b.replaced_by) for b in config.bindings.states}
    pools = [value for value in model.graph.inputs if value.name in replaced_by]
    pairs = state_pairs(
        model, {str(pool.name): replaced_by[str(pool.name)] for pool in pools if pool.name not in left_alone}
    )
    in_place = frozenset(str(past.name) for past, present in pairs if updates_in_place(past, present))
    layouts = {str(past.name): order for past in pools if (order := _order(past)) is not None}
    inputs = frozenset(str(value.name) for value in model.graph.inputs)
    return RewrittenPaged(model, inputs, in_place, parts | left_alone, layouts, deferred)


def _axes_of(form: PagedForm, tokens: int) -> Mapping[str, int]:
    if not tokens:
        return {}
    return {SEQ: tokens} if form is PagedForm.RAGGED else {TOKENS: tokens, SEQ: tokens}


def _order(pool: ir.Value) -> tuple[int, ...] | None:
    return pool.meta.get(POOL_ORDER, _TRANSPOSED if TRANSPOSED_STATE in pool.meta else None)
