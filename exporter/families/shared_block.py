"""Transformer blocks whose weights several layers share (Zamba): their description and parameters. No torch."""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass, replace

from hybridge.exporter.families.attention_config import AttentionConfig
from hybridge.exporter.families.mlp_config import MlpConfig

ADAPTED = ("q_proj", "k_proj", "v_proj")
FIRST_NORM = "input_layernorm.weight"


@dataclass(frozen=True)
class SharedBlockConfig:
    """A transformer block whose weights several layers share (Zamba, arXiv 2405.16712).

    Attention over the stream and the embeddings side by side, then an MLP, each after a norm and neither with a
    residual connection. ``source`` is its name in the checkpoint, from the root. With ``adapter_rank`` (Zamba2, arXiv
    2411.15242) each layer adds the product of two matrices of its own, of this rank, to the MLP's first projection and,
    with ``attention_adapters``, to those of queries, keys and values; ``use`` counts the layers that have such a block.
    """

    attention: AttentionConfig
    mlp: MlpConfig
    adapter_rank: int | None = None
    attention_adapters: bool = False
    source: str = ""
    use: int = 0

    @property
    def kind(self) -> SharedBlockConfig:
        """The block without the place of its weights."""
        return replace(self, source="", use=0)


def shared_block_sources(s: SharedBlockConfig, hidden: int) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    """Our name, the checkpoint's below ``source``, and the shape, of every shared parameter and adapter."""
    a, size = s.attention, s.mlp.intermediate_size
    width, kv_width = a.num_heads * a.head_dim, a.num_kv_heads * a.head_dim
    rows = dict(zip(ADAPTED, (width, kv_width, kv_width), strict=True))
    yield "norm.weight", FIRST_NORM, (2 * hidden,)
    for name, count in rows.items():
        yield f"attention.{name}.weight", f"self_attn.{name}.weight", (count, 2 * hidden)
        if s.attention_adapters:
            theirs = f"self_attn.linear_{name[0]}_adapter_list.{s.use}"
            yield from _adapter(s, f"attention.{name}", theirs, count, 2 * hidden)
    yield "attention.o_proj.weight", "self_attn.o_proj.weight", (hidden, width)
    yield "mlp_norm.weight", "pre_ff_layernorm.weight", (hidden,)
    if s.mlp.projections == "gated":
        for name in ("gate_proj", "up_proj"):
            yield f"mlp.{name}.weight", f"feed_forward.{name}.weight", (size, hidden)
        yield "mlp.down_proj.weight", "feed_forward.down_proj.weight", (hidden, size)
        return
    for ours, theirs, shape in (
        ("input_linear", "gate_up_proj", (2 * size, hidden)),
        ("output_linear", "down_proj", (hidden, size)),
    ):
        yield f"mlp.{ours}.weight", f"feed_forward.{theirs}.weight", shape
        if s.mlp.bias:
            yield f"mlp.{ours}.bias", f"feed_forward.{theirs}.bias", shape[:1]
    yield from _adapter(s, "mlp.input_linear", f"feed_forward.gate_up_proj_adapter_list.{s.use}", 2 * size, hidden)


def stored_block(s: SharedBlockConfig, root: str, layer: str, tensors: Container[str]) -> SharedBlockConfig:
    """``s`` with ``layer``'s own weights if it stores any: transformers ties blocks only if it ties the embeddings."""
    own = layer + s.source.rpartition(".")[2]
    return replace(s, source=own) if f"{root}{own}.{FIRST_NORM}" in tensors else s


def _adapter(
    s: SharedBlockConfig, ours: str, theirs: str, rows: int, columns: int
) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    if s.adapter_rank is not None:
        yield f"{ours}.down.weight", f"{theirs}.0.weight", (s.adapter_rank, columns)
        yield f"{ours}.up.weight", f"{theirs}.1.weight", (rows, s.adapter_rank)
