"""The paged layout: what a step's inputs are called, and which pools a graph has."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hybridge.artifact import names
from hybridge.artifact.bindings import BLOCK_SIZE, NUM_BLOCKS, NUM_SLOTS, Binding, GraphBindings
from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import ArtifactError
from hybridge.artifact.kv_dtypes import E4M3_BYTES
from hybridge.artifact.layer_config import KVLayerConfig, RecurrentLayerConfig
from hybridge.artifact.state_dtypes import has_state_scales
from hybridge.artifact.state_rings import StateRing
from hybridge.artifact.state_scales import StateScales

PAGED = "paged"
# Symbolic axes of a step: all new tokens, rows, rows + 1, blocks of the longest row, tokens whose logits are needed.
TOKENS, ROWS, ROW_BOUNDS, MAX_BLOCKS, NUM_LOGITS = "tokens", "rows", "row_bounds", "max_blocks", "num_logits"
# Rows of hidden states that an engine of a prediction head reads.
NUM_HIDDEN = "num_hidden"

STEP_INPUTS = (
    Binding(names.INPUT_IDS, DType.INT64, (TOKENS,)),
    Binding(names.POSITIONS, DType.INT64, (TOKENS,)),
    Binding(names.QUERY_START_LOC, DType.INT32, (ROW_BOUNDS,)),
    Binding(names.SEQ_LENS, DType.INT32, (ROWS,)),
    Binding(names.BLOCK_TABLE, DType.INT32, (ROWS, MAX_BLOCKS)),
    Binding(names.SLOT_MAPPING, DType.INT32, (TOKENS,)),
    Binding(names.STATE_INDICES, DType.INT32, (ROWS,)),
    Binding(names.LOGITS_INDICES, DType.INT32, (NUM_LOGITS,)),
)
"""Inputs of a step in graph order, before the pools; every paged graph has all of them."""


def draft_step_inputs(columns: int) -> tuple[Binding, ...]:
    """STEP_INPUTS of an engine that checks draft tokens, with ``columns`` slots a row."""
    inputs: list[Binding] = []
    for binding in STEP_INPUTS:
        if binding.name == names.STATE_INDICES:
            inputs.append(Binding(names.STATE_INDICES, DType.INT32, (ROWS, columns)))
            inputs.append(Binding(names.NUM_ACCEPTED_TOKENS, DType.INT32, (ROWS,)))
        else:
            inputs.append(binding)
    return tuple(inputs)


def kv_pool_bindings(k: int, layer: KVLayerConfig, dtype: DType) -> tuple[Binding, ...]:
    """The KV pool of attention layer ``k`` (local index): keys then values, by block, by offset in it, by head.

    Keys that are the values too are there once.
    Behind one of bytes of e4m3 comes the pool of its scales, by block, by head, by offset.
    """
    pool, scales = names.kv_pool(k), names.kv_scales(k)
    shape = (layer.parts, NUM_BLOCKS, BLOCK_SIZE, layer.num_kv_heads, layer.head_dim)
    bindings = (Binding(pool, dtype, shape, names.present(pool)),)
    if dtype is not E4M3_BYTES:
        return bindings
    by_head = (layer.parts, NUM_BLOCKS, layer.num_kv_heads, BLOCK_SIZE)
    return (*bindings, Binding(scales, DType.FLOAT32, by_head, names.present(scales)))


def state_bindings(
    r: int, layer: RecurrentLayerConfig, dtypes: Sequence[DType], rows: str, kind: str
) -> tuple[Binding, ...]:
    """The states of recurrent layer ``r`` (local index), of ``rows`` rows or slots; ``dtypes``: conv, recurrent.

    Behind a recurrent state of 8 bits come its scales, behind one with a ring the ring. kind: the type of the layer.
    """
    present = zip(dtypes, (layer.has_conv_state, layer.has_recurrent_state), strict=True)
    dtypes_of = [dtype for dtype, is_present in present if is_present]
    found = zip(layer.state_names(r), dtypes_of, layer.state_shapes, strict=True)
    bindings = tuple(Binding(name, dtype, (rows, *shape), names.present(name)) for name, dtype, shape in found)
    if layer.has_ring:
        # Convolution states have the type that the model computes in.
        return (*bindings, *StateRing.of(r, layer, kind, dtypes[0]).bindings(rows))
    if not (layer.has_recurrent_state and has_state_scales(dtypes[1])):
        return bindings
    own = StateScales.of(r, layer, kind, dtypes[1])
    return (*bindings, Binding(own.scales, DType.FLOAT32, (rows, *own.scale_shape), names.present(own.scales)))


def paged_inputs(
    kv_layers: Iterable[KVLayerConfig],
    recurrent_layers: Iterable[tuple[RecurrentLayerConfig, str]],
    dtypes: tuple[DType, DType, DType],
) -> tuple[Binding, ...]:
    """The inputs of a paged graph with these layers, in graph order; ``dtypes``: of KV, conv and recurrent states.

    recurrent_layers: with the type of each.
    """
    kv_dtype, *state_dtypes = dtypes
    inputs = [*STEP_INPUTS]
    for k, attention in enumerate(kv_layers):
        inputs += kv_pool_bindings(k, attention, kv_dtype)
    for r, (recurrent, kind) in enumerate(recurrent_layers):
        inputs += state_bindings(r, recurrent, state_dtypes, NUM_SLOTS, kind)
    return tuple(inputs)


def check_paged(bindings: GraphBindings, expected: Sequence[Binding], vocab_size: int) -> None:
    """ArtifactError unless ``bindings`` has the inputs ``expected``, and logits of ``vocab_size`` first."""
    found = bindings.inputs
    for index, binding in enumerate(expected):
        if index >= len(found) or found[index] != binding:
            described = "nothing" if index >= len(found) else _described(found[index])
            raise ArtifactError(
                f"config.json: bindings: expected the input {_described(binding)} of the paged layout, "
                f"found {described}: export the checkpoint again"
            )
    logits = Binding(names.LOGITS, DType.FLOAT32, (NUM_LOGITS, vocab_size))
    if len(found) > len(expected) or bindings.outputs[:1] != (logits,):
        wrong = found[len(expected)].name if len(found) > len(expected) else "another first output"
        raise ArtifactError(
            f"config.json: bindings: expected the paged layout's inputs and logits {list(logits.shape)}, "
            f"found {wrong}: export the checkpoint again"
        )


def _described(binding: Binding) -> str:
    return f"{binding.name} {list(binding.shape)} {binding.dtype.value} replaced by {binding.replaced_by}"
