"""Names and shapes of the parameters of mixers and MLPs. No torch."""

from __future__ import annotations

from collections.abc import Iterator

from hybridge.exporter.families.attention_config import (
    AttentionConfig,
    ConvolutionalAttentionConfig,
    LatentAttentionConfig,
)
from hybridge.exporter.families.decoder_config import BodyConfig
from hybridge.exporter.families.mamba1_config import (
    HeadedMamba1Config,
    Mamba1Config,
    headed_mamba1_shapes,
    mamba1_shapes,
)
from hybridge.exporter.families.mlp_config import MlpConfig
from hybridge.exporter.families.recurrent_config import (
    GatedDeltaConfig,
    LightningAttentionConfig,
    MambaConfig,
    ShortConvConfig,
)
from hybridge.exporter.families.rg_lru import RgLruConfig, rg_lru_shapes


def body_shapes(body: BodyConfig, hidden: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The name and shape of each parameter of a block's body, for the hidden size ``hidden``.

    Bodies of several modules (branches, experts) have none of their own.
    """
    if isinstance(body, AttentionConfig):
        yield from _attention_shapes(body, hidden)
    elif isinstance(body, LatentAttentionConfig):
        yield from _latent_attention_shapes(body, hidden)
    elif isinstance(body, ConvolutionalAttentionConfig):
        yield from _convolutional_attention_shapes(body, hidden)
    elif isinstance(body, MambaConfig):
        yield from _mamba_shapes(body, hidden)
    elif isinstance(body, HeadedMamba1Config):
        yield from headed_mamba1_shapes(body, hidden)
    elif isinstance(body, Mamba1Config):
        yield from mamba1_shapes(body, hidden)
    elif isinstance(body, GatedDeltaConfig):
        yield from _gated_delta_shapes(body, hidden)
    elif isinstance(body, LightningAttentionConfig):
        yield "qkv_proj.weight", (3 * body.width, hidden)
        yield "log_decays", (body.num_heads,)
        yield "norm.weight", (body.width,)
        yield "output_gate.weight", (body.width, hidden)
        yield "out_proj.weight", (hidden, body.width)
    elif isinstance(body, RgLruConfig):
        yield from rg_lru_shapes(body, hidden)
    elif isinstance(body, ShortConvConfig):
        yield from _linear("in_proj", 3 * body.conv_dim, hidden, body.bias)
        yield "conv1d.weight", (body.conv_dim, 1, body.conv_kernel)
        if body.bias:
            yield "conv1d.bias", (body.conv_dim,)
        yield from _linear("out_proj", hidden, body.conv_dim, body.bias)
    elif isinstance(body, MlpConfig):
        yield from _mlp_shapes(body, hidden)


def _linear(name: str, rows: int, columns: int, bias: bool) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield f"{name}.weight", (rows, columns)
    if bias:
        yield f"{name}.bias", (rows,)


def _attention_shapes(a: AttentionConfig, hidden: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    width, kv_width = a.num_heads * a.head_dim, a.num_kv_heads * a.head_dim
    if a.fused:
        yield from _linear("qkv_proj", width + 2 * kv_width, hidden, a.bias)
    else:
        yield from _linear("q_proj", 2 * width if a.output_gate else width, hidden, a.bias)
        yield from _linear("k_proj", kv_width, hidden, a.bias)
        yield from _linear("v_proj", kv_width, hidden, a.bias)
    yield from _linear("o_proj", hidden, width, a.output_bias)
    if a.sinks:
        yield "sinks", (a.num_heads,)
    if a.head_gate:
        yield "g_proj.weight", (a.num_heads, hidden)
    if a.qk_norm:
        yield "q_norm.weight", (width if a.qk_norm_joint else a.head_dim,)
        yield "k_norm.weight", (kv_width if a.qk_norm_joint else a.head_dim,)


def _latent_attention_shapes(a: LatentAttentionConfig, hidden: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    queries = a.num_heads * a.query_size
    if a.query_rank is None:
        yield "q_proj.weight", (queries, hidden)
    else:
        yield from _linear("q_a_proj", a.query_rank, hidden, a.bias)
        yield "q_a_layernorm.weight", (a.query_rank,)
        yield "q_b_proj.weight", (queries, a.query_rank)
    yield from _linear("kv_a_proj_with_mqa", a.head_dim, hidden, a.bias)
    yield "kv_a_layernorm.weight", (a.rank,)
    yield "kv_b_proj.weight", (a.num_heads * (a.key_size + a.value_size), a.rank)
    if a.head_gate:
        yield "g_proj.weight", (a.num_heads, hidden)
    yield from _linear("o_proj", hidden, a.num_heads * a.value_size, a.bias)


def _convolutional_attention_shapes(
    a: ConvolutionalAttentionConfig, hidden: int
) -> Iterator[tuple[str, tuple[int, ...]]]:
    queries, keys = a.num_heads * a.head_dim, a.num_kv_heads * a.head_dim
    rows = {"q_proj": queries, "k_proj": keys, "v_proj_current": a.delayed_width, "v_proj_delayed": a.delayed_width}
    for name, count in rows.items():
        yield f"qkv_proj.{name}.weight", (count, hidden)
        if a.bias:
            yield f"qkv_proj.{name}.bias", (count,)
    for name, columns, kernel in (("depthwise", 1, a.depthwise_kernel), ("grouped", a.head_dim, a.grouped_kernel)):
        yield f"qkv_proj.conv_qk_{name}.weight", (a.width, columns, kernel)
        yield f"qkv_proj.conv_qk_{name}.bias", (a.width,)
    yield "qk_norm.temp", (a.num_kv_heads,)
    yield "o_proj.weight", (hidden, queries)
    if a.bias:
        yield "o_proj.bias", (hidden,)


def _mamba_shapes(m: MambaConfig, hidden: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield from _linear("in_proj", m.intermediate_size + m.conv_dim + m.num_heads, hidden, m.proj_bias)
    yield "conv1d.weight", (m.conv_dim, 1, m.conv_kernel)
    if m.conv_bias:
        yield "conv1d.bias", (m.conv_dim,)
    for name in ("A", "D", "dt_bias"):
        yield name, (m.num_heads,)
    if m.has_norm:
        yield "norm.weight", (m.intermediate_size,)
    if m.multipliers is not None:
        yield "multipliers", (sum(m.projection_sizes),)
    yield from _linear("out_proj", hidden, m.intermediate_size, m.proj_bias if m.out_bias is None else m.out_bias)


def _gated_delta_shapes(g: GatedDeltaConfig, hidden: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    if g.projections == "fused":
        yield "in_proj_qkvz.weight", (g.conv_dim + g.value_dim, hidden)
        yield "in_proj_ba.weight", (2 * g.num_value_heads, hidden)
    elif g.has_separate_convolutions:
        decay = "f" if g.has_channel_decay else "a"
        rows = {"q": g.key_dim, "k": g.key_dim, "v": g.value_dim, "b": g.num_value_heads}
        outputs = {"g": g.value_dim, decay: g.decay_dim}
        if g.projections == "low_rank":
            for name, count in outputs.items():
                yield f"{name}_a_proj.weight", (g.value_size, hidden)
                yield f"{name}_b_proj.weight", (count, g.value_size)
        else:
            rows |= outputs
        for name, count in rows.items():
            yield f"{name}_proj.weight", (count, hidden)
    else:
        yield "in_proj_qkv.weight", (g.conv_dim, hidden)
        yield "in_proj_z.weight", (g.value_dim, hidden)
        yield "in_proj_b.weight", (g.num_value_heads, hidden)
        yield "in_proj_a.weight", (g.num_value_heads, hidden)
    if g.has_separate_convolutions:
        for name, channels in zip("qkv", g.conv_parts or (g.key_dim, g.key_dim, g.value_dim), strict=True):
            yield f"{name}_conv1d.weight", (channels, 1, g.conv_kernel)
    else:
        yield "conv1d.weight", (g.conv_dim, 1, g.conv_kernel)
    yield "A", g.decay_shape or (g.num_value_heads,)
    yield "dt_bias", (g.decay_dim,)
    yield "norm.weight", (g.value_size,)
    yield "out_proj.weight", (hidden, g.value_dim)


def _mlp_shapes(mlp: MlpConfig, hidden: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    size = mlp.intermediate_size
    if mlp.projections == "fused":
        yield from _linear("input_linear", 2 * size, hidden, mlp.bias)
        yield from _linear("output_linear", hidden, size, mlp.bias)
        return
    if mlp.projections == "gated":
        yield from _linear("gate_proj", size, hidden, mlp.bias)
    yield from _linear("up_proj", size, hidden, mlp.bias)
    yield from _linear("down_proj", hidden, size, mlp.bias)
