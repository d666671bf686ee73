"""Layout facts that can only be read from a checkpoint's tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from hybridge.artifact.safetensors_file import TensorSlot
from hybridge.exporter.families.decoder_config import BlockConfig, DecoderConfig
from hybridge.exporter.families.parameters import head_source, tensor_root
from hybridge.exporter.families.recurrent_config import GatedDeltaConfig
from hybridge.exporter.families.shared_block import stored_block

# A tensor of experts, and one of an MLP.
_FEED_FORWARD_TENSORS = ("gate.weight", "gate_proj.weight")


def as_stored(config: DecoderConfig, tensors: Mapping[str, TensorSlot]) -> DecoderConfig:
    """``config`` with the sizes at which this checkpoint cuts what the graph joins again.

    A gated delta net with separate projections has three convolutions. transformers joins them, and cuts the result
    into three equal parts when it saves the model, whatever sizes q, k and v have. It also stores, and uses, a head of
    its own for families that it never ties, whatever their config says. Blocks may have one of two names, and every
    layer may store the block that others share with it.
    """
    root = tensor_root(config, tensors)
    layers = []
    for index, layer in enumerate(config.layers):
        blocks = tuple(_block(block, root, f"layers.{index}.", tensors) for block in layer.blocks)
        layers.append(replace(layer, blocks=blocks))
    tied = config.tie_word_embeddings and not (config.own_head_wins and head_source(root) in tensors)
    return replace(config, layers=tuple(layers), tie_word_embeddings=tied)


def _block(block: BlockConfig, root: str, own: str, tensors: Mapping[str, TensorSlot]) -> BlockConfig:
    if block.shared is not None:
        return replace(block, shared=stored_block(block.shared, root, own, tensors))
    body, alias, layer = block.body, block.source_alias, f"{root}{own}"
    if alias is not None and any(f"{layer}{alias}.{name}" in tensors for name in _FEED_FORWARD_TENSORS):
        block = replace(block, source=alias)
    if not isinstance(body, GatedDeltaConfig) or not body.has_separate_convolutions:
        return block
    found = [tensors.get(f"{layer}{block.source}.{name}_conv1d.weight") for name in "qkv"]
    channels = tuple(slot.shape[0] for slot in found if slot is not None and slot.shape)
    if len(channels) != 3 or sum(channels) != body.conv_dim:
        return block
    return replace(block, body=replace(body, conv_parts=channels))
