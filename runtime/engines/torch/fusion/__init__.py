"""Rewrites of the artifact's graph into operators that this engine runs faster."""

from __future__ import annotations

from collections.abc import Container
from enum import Enum

import onnx_ir as ir

from hybridge.artifact.names import NUM_ACCEPTED_TOKENS
from hybridge.runtime.engines.torch.fusion.attention import fuse_attention
from hybridge.runtime.engines.torch.fusion.elementwise import fuse_elementwise
from hybridge.runtime.engines.torch.fusion.grouped_norm import fuse_grouped_norms
from hybridge.runtime.engines.torch.fusion.last_rows import leave_out_other_tokens
from hybridge.runtime.engines.torch.fusion.last_token import fuse_last_token
from hybridge.runtime.engines.torch.fusion.linear import fuse_linears, fuse_norms_into_linears
from hybridge.runtime.engines.torch.fusion.projections import merge_projections
from hybridge.runtime.engines.torch.fusion.quantized import tile_weights
from hybridge.runtime.engines.torch.fusion.quantized_experts import tile_experts
from hybridge.runtime.engines.torch.fusion.rotary import fuse_rotary
from hybridge.runtime.engines.torch.fusion.router import fuse_routers
from hybridge.runtime.engines.torch.fusion.row_order import order_rows
from hybridge.runtime.engines.torch.fusion.state_rings import use_rings
from hybridge.runtime.engines.torch.fusion.wide_norm import fuse_wide_norms
from hybridge.runtime.engines.torch.graph import SNAPSHOT_SLOTS, clean_graph, engine_input
from hybridge.trt_plugins.rewrites.draft_slots import use_draft_slots
from hybridge.trt_plugins.rewrites.joined_mixers import join_mixers


class Phase(str, Enum):
    """PREFILL: steps of any number of tokens a row. FEED: the same without logits. DECODE: at most one token a row.

    DRAFT: any number too, in steps that leave the states of some rows unchanged. RING: DECODE over states with rings.
    """

    PREFILL = "prefill"
    FEED = "feed"
    DECODE = "decode"
    DRAFT = "draft"
    RING = "ring"


def fuse_graph(model: ir.Model, phase: Phase, merge: bool, snapshots: Container[str] = frozenset()) -> None:
    """Rewrite ``model`` in place for one phase.

    merge: products of one x share a matrix, whose rows are in the order of their use, and those with quantised weights
    read tiles, which must be made. snapshots: operators whose state after each token is stored in steps with draft
    tokens.
    """
    graph = model.graph
    if phase is Phase.DRAFT:
        own_slots = engine_input(graph, SNAPSHOT_SLOTS)
        accepted = engine_input(graph, NUM_ACCEPTED_TOKENS)
        use_draft_slots(graph, accepted, lambda operator: own_slots if operator in snapshots else None)
    fuse_attention(graph)
    fuse_rotary(graph)
    fuse_last_token(graph)
    if phase is Phase.DECODE:
        # For longer steps the gate is cheaper inside of the norm that follows.
        join_mixers(graph)
    elif phase is Phase.RING:
        use_rings(graph)
    fuse_grouped_norms(graph)
    fuse_wide_norms(graph)
    fuse_routers(graph)
    clean_graph(graph)
    fuse_linears(graph)
    clean_graph(graph)
    if merge:
        merge_projections(graph)
        order_rows(graph)
    fuse_norms_into_linears(graph)
    if merge:
        tile_weights(graph)
        tile_experts(graph)
    fuse_elementwise(graph)
    clean_graph(graph)
    if phase in (Phase.PREFILL, Phase.FEED):
        leave_out_other_tokens(graph)
        clean_graph(graph)
