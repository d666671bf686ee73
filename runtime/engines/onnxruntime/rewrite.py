"""Rewrites the artifact's graph for one session: the passes in order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import onnx_ir as ir

from hybridge.artifact.bindings import BATCH, SEQ
from hybridge.artifact.config import RuntimeConfig
from hybridge.runtime.engines.onnxruntime.activations import use_exact_activations
from hybridge.runtime.engines.onnxruntime.attention import use_group_query_attention
from hybridge.runtime.engines.onnxruntime.cached_attention import use_cached_attention
from hybridge.runtime.engines.onnxruntime.columns import put_weights_left
from hybridge.runtime.engines.onnxruntime.fixed_axes import fix_axes
from hybridge.runtime.engines.onnxruntime.graph_edit import fixed_shape, remove_dead_code, state_pairs
from hybridge.runtime.engines.onnxruntime.graph_form import GraphForm, StateLayout
from hybridge.runtime.engines.onnxruntime.graph_weights import serialised_model
from hybridge.runtime.engines.onnxruntime.in_place import updates_in_place
from hybridge.runtime.engines.onnxruntime.kernels import Kernels
from hybridge.runtime.engines.onnxruntime.linear import use_stored_weights
from hybridge.runtime.engines.onnxruntime.op_bodies import use_op_bodies
from hybridge.runtime.engines.onnxruntime.opset import lower_opset
from hybridge.runtime.engines.onnxruntime.reshapes import join_reshapes, reshape_gathers_of_one
from hybridge.runtime.engines.onnxruntime.session_graph import DenseGraph
from hybridge.runtime.engines.onnxruntime.stateless_layers import rewrite_stateless_layers
from hybridge.runtime.engines.onnxruntime.update_ssm_state import TRANSPOSED_STATE
from hybridge.runtime.engines.onnxruntime.widen_types import widen_types

_FIXED_AXES: Mapping[GraphForm, Mapping[str, int]] = MappingProxyType(
    {
        GraphForm.ONE_TOKEN: {BATCH: 1, SEQ: 1},
        GraphForm.TOKEN_PER_ROW: {SEQ: 1},
        GraphForm.GENERAL: {},
        GraphForm.PADDED: {},
    }
)


@dataclass(frozen=True)
class RewrittenGraph:
    """A model ready for a session.

    inputs: names of its graph inputs. in_place: states whose input and output may share a buffer.
    layouts: how the graph holds each state.
    """

    model: ir.Model
    inputs: frozenset[str]
    in_place: frozenset[str]
    layouts: Mapping[str, StateLayout]

    def serialised(self) -> DenseGraph:
        """The graph in the form that sessions are created from; its model is changed."""
        model, weights = serialised_model(self.model)
        return DenseGraph(model, weights, self.inputs, self.in_place, self.layouts)


def rewrite(
    model: ir.Model,
    config: RuntimeConfig,
    form: GraphForm,
    kernels: Kernels,
    exact: bool = False,
    shown: Sequence[str] = (),
) -> RewrittenGraph:
    """Rewrite ``model`` (it is changed) for sessions of ``form``.

    exact: inputs of quantised weights are not rounded. shown: inner values that the graph also returns. EngineError
    when the installed ONNX Runtime cannot run the result.
    """
    rewrite_stateless_layers(model, kernels, form is GraphForm.ONE_TOKEN, exact, shown)
    padded = form is GraphForm.PADDED
    if not padded:
        use_cached_attention(model, kernels)
    use_group_query_attention(model, kernels, padded)
    fix_axes(model, _FIXED_AXES[form])
    use_op_bodies(model, kernels, padded)
    reshape_gathers_of_one(model)
    join_reshapes(model)
    if form is GraphForm.TOKEN_PER_ROW:
        put_weights_left(model)
    remove_dead_code(model)
    lower_opset(model, kernels)
    replaced_by = {b.name: b.replaced_by for b in config.bindings.states if b.replaced_by is not None}
    pairs = state_pairs(model, replaced_by)
    return RewrittenGraph(
        model,
        frozenset(str(value.name) for value in model.graph.inputs),
        frozenset(str(past.name) for past, present in pairs if updates_in_place(past, present)),
        {str(past.name): _layout(past) for past, _ in pairs},
    )


def widen_only(model: ir.Model, kernels: Kernels) -> ir.Model:
    """``model`` with float32 types, its matrices used as stored, exact activations, and nothing else changed.

    Transposed matrices would have to be copied into the model, which cannot hold more than 2 GB. EngineError
    when the installed version is too old.
    """
    widen_types(model)
    use_exact_activations(model)
    use_stored_weights(model)
    remove_dead_code(model)
    lower_opset(model, kernels)
    return model


def _layout(past: ir.Value) -> StateLayout:
    shape = fixed_shape(past)
    assert shape is not None and shape[-1] is not None
    return StateLayout(TRANSPOSED_STATE in past.meta, shape[-1])
