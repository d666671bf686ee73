"""Rotary embeddings whose frequencies depend on how long a sequence is.

Formulas: LongRoPE (Ding et al. 2024) for "longrope"; transformers' dynamic NTK scaling for "dynamic".

transformers switches to other frequencies in the step in which a sequence becomes too long for the first ones. Keys
cached before keep their rotation, so the answer would depend on how a prompt was split into steps. An artifact
therefore has one set for all lengths, by its longest sequence.
"""

from __future__ import annotations

import math
from dataclasses import replace

from hybridge.artifact.errors import UnsupportedError
from hybridge.artifact.json_fields import Fields
from hybridge.exporter.families.attention_config import AttentionConfig, RopeConfig
from hybridge.exporter.families.decoder_config import BlockConfig, DecoderConfig, LayerConfig
from hybridge.exporter.families.hf_config import finite


def longrope(
    fields: Fields, base: list[float], rotary_dim: int, original: int | None, max_positions: int | None
) -> RopeConfig:
    """The embedding of ``base`` frequencies: divided by short_factor, and by long_factor in longer sequences.

    ``original``: the tokens of the longest short sequence, where the config gives it outside of ``fields``.
    """
    if original is None:
        if "original_max_position_embeddings" in fields:
            original = fields.integer("original_max_position_embeddings", minimum=1)
        elif (original := max_positions) is None:
            raise fields.fail("original_max_position_embeddings", "an integer")
    fields.raw("original_max_position_embeddings", None)
    short, long = (_divided(fields, name, base) for name in ("short_factor", "long_factor"))
    factor = None if fields.raw("factor", None) is None else finite(fields, "factor", positive=True)
    if factor is None:
        factor = (max_positions or original) / original
    if fields.raw("attention_factor", None) is not None:
        scaling = finite(fields, "attention_factor", positive=True)
    elif factor <= 1:
        scaling = 1.0
    elif original == 1:
        raise fields.fail("original_max_position_embeddings", "more than 1")
    else:
        scaling = math.sqrt(1 + math.log(factor) / math.log(original))
    return RopeConfig(rotary_dim, short, scaling, original, long)


def dynamic(fields: Fields, base: list[float], rotary_dim: int, max_positions: int | None) -> RopeConfig:
    """The embedding of ``base`` frequencies, which change with every token beyond max_position_embeddings."""
    finite(fields, "factor", positive=True)
    if max_positions is None:
        raise UnsupportedError("config.json: max_position_embeddings: expected an integer with rope_type 'dynamic'")
    if rotary_dim == 2:
        raise fields.fail("rope_type", "another one than 'dynamic' for 2 rotary dimensions")
    return RopeConfig(rotary_dim, tuple(base), longest=max_positions)


def _divided(fields: Fields, name: str, base: list[float]) -> tuple[float, ...]:
    factors = fields.raw(name, None)
    numbers = isinstance(factors, list) and all(
        isinstance(factor, int | float) and not isinstance(factor, bool) and 0 < factor < math.inf for factor in factors
    )
    if not numbers or len(factors) != len(base):
        raise fields.fail(name, f"a list of {len(base)} positive numbers, half of head_dim x partial_rotary_factor")
    return tuple(frequency / factor for frequency, factor in zip(base, factors, strict=True))


def at_length(config: DecoderConfig, tokens: int) -> DecoderConfig:
    """``config`` with the frequencies for sequences of up to ``tokens`` tokens.

    UnsupportedError: no one set of frequencies serves these.
    """
    short = [rope.longest for rope in config.ropes if rope.longest is not None and tokens > rope.longest]
    if not short:
        return config
    note = (
        f"the rotary embedding has its long factors at every length, transformers from {short[0] + 1} tokens on: "
        f"for the short ones, export with a max_seq_len of {short[0]}"
    )
    layers = tuple(LayerConfig(tuple(_block(block, tokens) for block in layer.blocks)) for layer in config.layers)
    return replace(config, layers=layers, notes=(*config.notes, note))


def _block(block: BlockConfig, tokens: int) -> BlockConfig:
    body = block.body
    if not isinstance(body, AttentionConfig) or body.rope is None:
        return block
    rope = body.rope
    if rope.longest is None or tokens <= rope.longest:
        return block
    if rope.beyond is None:
        raise UnsupportedError(
            f"config.json: rope_type 'dynamic': expected sequences of at most max_position_embeddings {rope.longest} "
            f"tokens, found {tokens}: export with a smaller `max_seq_len`"
        )
    return replace(block, body=replace(body, rope=replace(rope, inv_freq=rope.beyond, longest=None, beyond=None)))
