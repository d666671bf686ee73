"""The parameters of multi-head latent attention. No torch."""

from __future__ import annotations

from collections.abc import Iterator

from hybridge.exporter.families.attention_config import LatentAttentionConfig


def latent_attention_shapes(a: LatentAttentionConfig, hidden: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Name and shape of every parameter."""
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


def _linear(name: str, rows: int, columns: int, bias: bool) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield f"{name}.weight", (rows, columns)
    if bias:
        yield f"{name}.bias", (rows,)
