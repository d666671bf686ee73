"""Rewrites of the artifact's graph into operators that this engine runs faster."""

from __future__ import annotations

from collections.abc import Container
from enum import Enum

import onnx_ir as ir

from hybridge.artifact.config import RuntimeConfig
from hybridge.runtime.engines.torch.fusion.attention import fuse_attention
from hybridge.runtime.engines.torch.fusion.elementwise import fuse_elementwise
from hybridge.runtime.engines.torch.fusion.grouped_norm import fuse_grouped_norms
from hybridge.runtime.engines.torch.fusion.held_slots import keep_states, use_candidate_slots
from hybridge.runtime.engines.torch.fusion.last_token import fuse_last_token
from hybridge.runtime.engines.torch.fusion.linear import fuse_linears, fuse_norms_into_linears
from hybridge.runtime.engines.torch.fusion.one_slot import use_one_slot
from hybridge.runtime.engines.torch.fusion.projections import merge_projections
from hybridge.runtime.engines.torch.fusion.rotary import fuse_rotary
from hybridge.runtime.engines.torch.fusion.router import fuse_routers
from hybridge.runtime.engines.torch.fusion.wide_norm import fuse_wide_norms
from hybridge.runtime.engines.torch.graph import tidy_graph
from hybridge.trt_plugins.rewrites.joined_mixers import join_mixers


class Phase(str, Enum):
    """PREFILL: steps of any number of tokens a row. DECODE: at most one token a row.

    CANDIDATES: any number too, with a slot for the state after each of a row's first tokens. HELD: the same of any
    artifact, for steps that leave the states of some rows as they are.
    """

    PREFILL = "prefill"
    DECODE = "decode"
    CANDIDATES = "candidates"
    HELD = "held"


def fuse_graph(
    model: ir.Model, config: RuntimeConfig, phase: Phase, merge: bool, kept: Container[str] = frozenset()
) -> None:
    """Rewrite ``model`` in place for one phase.

    merge: products of one x share a matrix, which has to be made. kept: operators whose states steps that hold others
    keep after each candidate token.
    """
    graph = model.graph
    if phase is Phase.HELD:
        if not config.speculative_tokens:
            use_candidate_slots(graph)
        keep_states(graph, kept)
    elif config.speculative_tokens and phase is not Phase.CANDIDATES:
        use_one_slot(graph)
    fuse_attention(graph)
    fuse_rotary(graph)
    fuse_last_token(graph)
    if phase is Phase.DECODE:
        # For longer steps the gate is cheaper inside of the norm that follows.
        join_mixers(graph)
    fuse_grouped_norms(graph)
    fuse_wide_norms(graph)
    fuse_routers(graph)
    tidy_graph(graph)
    fuse_linears(graph)
    tidy_graph(graph)
    if merge:
        merge_projections(graph)
    fuse_norms_into_linears(graph)
    fuse_elementwise(graph)
    tidy_graph(graph)
