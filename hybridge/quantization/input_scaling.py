"""Which inputs of a decoder's matrices can be scaled by features, so that its function stays the same.

The tensor that produces a feature is divided by the feature's scale, and the columns of every matrix that reads it are
multiplied. Left alone are inputs that no tensor produces by features: the residual stream (norms behind a block),
outputs of experts, and norms that experts in one tensor read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hybridge.exporter.families.attention_config import AttentionConfig, LatentAttentionConfig
from hybridge.exporter.families.decoder_config import BlockConfig, BodyConfig, DecoderConfig, ParallelConfig
from hybridge.exporter.families.mlp_config import MlpConfig, MoeConfig
from hybridge.exporter.families.parameters import Parameter
from hybridge.exporter.families.recurrent_config import (
    GatedDeltaConfig,
    LightningAttentionConfig,
    MambaConfig,
    ShortConvConfig,
)

# Matrices that read their block's norm, and those that read something else: the parts of a body, then names.
_PARTS = ("", "attention.", "mamba.", "shared.", "experts.", "qkv_proj.")
_READ_NORM = frozenset(
    (
        *("q_proj", "k_proj", "v_proj", "qkv_proj", "v_proj_current", "v_proj_delayed", "g_proj", "output_gate"),
        *("q_a_proj", "kv_a_proj_with_mqa", "linear_x", "linear_y"),
        *("in_proj", "in_proj_a", "in_proj_b", "in_proj_ba", "in_proj_qkv", "in_proj_qkvz", "in_proj_z"),
        *("a_proj", "b_proj", "f_proj", "f_a_proj", "g_a_proj"),
        *("gate_proj", "up_proj", "input_linear", "up", "router", "shared_gate"),
    )
)
_READ_OTHERS = frozenset(
    (
        *("o_proj", "out_proj", "linear_out", "down_proj", "output_linear", "down", "latent_out"),
        *("q_b_proj", "kv_b_proj", "f_b_proj", "g_b_proj", "x_proj", "dt_proj"),
        *("A", "D", "conv1d", "q_conv1d", "k_conv1d", "v_conv1d"),
    )
)
# Activations of plain MLPs that carry a scale through: f(s x) = s^n f(x) for s > 0.
_POWERS = {"relu": 1, "relu2": 2}


@dataclass(frozen=True, eq=False)
class ScalableInput:
    """An input of matrices.

    producer: a vector that multiplies the features (a norm's weight, to which ``offset`` is added), or a matrix whose
    rows they are, with its ``bias``. positions [features]: the producer's entry or row of each feature. power: of a
    producer's row that the feature has. consumers: every matrix [rows, features] that reads them. layer: its number.
    """

    layer: int
    producer: str
    consumers: tuple[str, ...]
    positions: np.ndarray
    bias: str | None = None
    power: int = 1
    offset: float = 0.0


def scalable_inputs(decoder: DecoderConfig, parameters: Sequence[Parameter]) -> list[ScalableInput]:
    """The scalable inputs of all layers; tensors have the names of the checkpoint."""
    found: list[ScalableInput] = []
    for number, layer in enumerate(decoder.layers):
        for index, block in enumerate(layer.blocks):
            prefix = f"layers.{number}.blocks.{index}."
            own = {p.name.removeprefix(prefix): p for p in parameters if p.name.startswith(prefix)}
            found += _of_block(block, own, decoder, number)
    # A norm that is named twice has readers beyond one block.
    counts = Counter(each.producer for each in found)
    return [each for each in found if counts[each.producer] == 1]


def _of_block(
    block: BlockConfig, own: Mapping[str, Parameter], decoder: DecoderConfig, number: int
) -> Iterator[ScalableInput]:
    norm = own["norm.weight"].source
    assert norm is not None
    readers = _readers(block.body, own, decoder.hidden_size)
    # With residual factors, the norm's output is the residual, too.
    if readers and not block.norm_after and block.residual_factors is None:
        positions = np.arange(decoder.hidden_size)
        yield ScalableInput(number, norm, readers, positions, offset=decoder.norm_offset)
    yield from _inner(block.body, own, "body.", number)


def _readers(body: BodyConfig, own: Mapping[str, Parameter], hidden: int) -> tuple[str, ...]:
    """The matrices that read the block's norm; none where one of them has three axes, or may read it and may not."""
    found: list[str] = []
    for name, parameter in own.items():
        if not name.startswith("body.") or len(parameter.shape) < 2 or parameter.shape[-1] != hidden:
            continue
        part, _, last = name.removeprefix("body.").removesuffix(".weight").rpartition(".")
        known = f"{part}." * bool(part) in _PARTS
        experts_of_latents = part == "experts" and isinstance(body, MoeConfig) and body.latent_size is not None
        if known and (last in _READ_OTHERS or experts_of_latents):
            continue
        if not known or last not in _READ_NORM or (not parameter.parts and len(parameter.shape) != 2):
            return ()
        found += parameter.sources
    return tuple(found)


def _inner(body: BodyConfig, own: Mapping[str, Parameter], prefix: str, number: int) -> Iterator[ScalableInput]:
    """Inputs of matrices that the body itself produces."""

    def source(name: str) -> str:
        found = own[prefix + name].source
        assert found is not None
        return found

    def of(producer: str, consumer: str, positions: np.ndarray, power: int = 1) -> ScalableInput:
        bias = producer.replace(".weight", ".bias")
        has_bias = bias != producer and prefix + bias in own
        return ScalableInput(
            number, source(producer), (source(consumer),), positions, source(bias) if has_bias else None, power
        )

    if isinstance(body, AttentionConfig):
        heads = np.arange(body.num_heads) // (body.num_heads // body.num_kv_heads)
        positions = (heads[:, None] * body.head_dim + np.arange(body.head_dim)).reshape(-1)
        if body.fused:
            values = (body.num_heads + body.num_kv_heads) * body.head_dim
            yield of("qkv_proj.weight", "o_proj.weight", positions + values)
        else:
            yield of("v_proj.weight", "o_proj.weight", positions)
    elif isinstance(body, LatentAttentionConfig):
        if body.query_rank is not None:
            yield of("q_a_layernorm.weight", "q_b_proj.weight", np.arange(body.query_rank))
        rows = (body.key_size + body.value_size) * np.arange(body.num_heads)[:, None] + body.key_size
        yield of("kv_b_proj.weight", "o_proj.weight", (rows + np.arange(body.value_size)).reshape(-1))
    elif isinstance(body, MambaConfig):
        if body.has_norm:
            yield of("norm.weight", "out_proj.weight", np.arange(body.intermediate_size))
    elif isinstance(body, GatedDeltaConfig):
        yield of("norm.weight", "out_proj.weight", np.arange(body.value_dim) % body.value_size)
    elif isinstance(body, MlpConfig):
        positions = np.arange(body.intermediate_size)
        if body.projections == "fused":
            yield of("input_linear.weight", "output_linear.weight", positions + body.intermediate_size)
        elif body.projections == "gated":
            yield of("up_proj.weight", "down_proj.weight", positions)
        elif body.activation in _POWERS:
            yield of("up_proj.weight", "down_proj.weight", positions, _POWERS[body.activation])
    elif isinstance(body, ShortConvConfig):
        yield of("in_proj.weight", "out_proj.weight", np.arange(body.conv_dim) + body.conv_dim)
    elif isinstance(body, ParallelConfig):
        yield from _inner(body.attention.body, own, f"{prefix}attention.", number)
        yield from _inner(body.mamba.body, own, f"{prefix}mamba.", number)
    elif isinstance(body, LightningAttentionConfig):
        yield of("norm.weight", "out_proj.weight", np.arange(body.width))
    elif isinstance(body, MoeConfig) and body.shared is not None:
        yield from _inner(body.shared, own, f"{prefix}shared.", number)
