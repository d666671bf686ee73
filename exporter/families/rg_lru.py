"""The recurrent block of Griffin: its description and parameters. No torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hybridge.artifact.layer_config import RecurrentLayerConfig
from hybridge.artifact.layer_types import RG_LRU

# Griffin's constant c: the log of the decay is at most c times softplus(recurrent_param).
SHARPNESS = 8.0


@dataclass(frozen=True)
class RgLruConfig:
    """A real-gated linear recurrent unit (Griffin, arXiv 2402.19427) of ``width`` channels behind a convolution.

    Its two gates are products with matrices of ``num_heads`` equal parts of the channels. ``activation`` is of the
    branch that multiplies its output.
    """

    width: int
    num_heads: int
    conv_kernel: int
    activation: str

    layer_type = RG_LRU

    @property
    def conv_dim(self) -> int:
        return self.width

    @property
    def head_dim(self) -> int:
        """Channels of one matrix of the gates."""
        return self.width // self.num_heads

    @property
    def recurrent(self) -> RecurrentLayerConfig:
        return RecurrentLayerConfig(1, self.width, 1, self.width, self.conv_kernel)


def rg_lru_shapes(r: RgLruConfig, hidden: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Name and shape of every parameter."""
    for name, rows, columns in (
        ("linear_y", r.width, hidden),
        ("linear_x", r.width, hidden),
        ("linear_out", hidden, r.width),
    ):
        yield f"{name}.weight", (rows, columns)
        yield f"{name}.bias", (rows,)
    yield "conv1d.weight", (r.width, 1, r.conv_kernel)
    yield "conv1d.bias", (r.width,)
    yield "rg_lru.open_log_decays", (r.width,)
    for gate in ("input_gate", "recurrent_gate"):
        yield f"rg_lru.{gate}_weight", (r.num_heads, r.head_dim, r.head_dim)
        yield f"rg_lru.{gate}_bias", (r.num_heads, r.head_dim)
