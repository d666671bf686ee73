"""The Mamba1 mixer: its description, its parameters, and the config fields that families read. No torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hybridge.artifact.layer_config import RecurrentLayerConfig
from hybridge.artifact.layer_types import MAMBA

INNER_NORMS = ("dt_norm", "b_norm", "c_norm")


@dataclass(frozen=True)
class Mamba1Config:
    """A Mamba1 mixer (arXiv 2312.00752) of ``intermediate_size`` channels.

    ``rank`` is the width between x_proj and dt_proj. ``inner_norms``: RMS norms with ``norm_eps`` of x_proj's outputs
    (dt, B and C), "plain" without weights or "weighted".
    """

    intermediate_size: int
    state_size: int
    rank: int
    conv_kernel: int
    proj_bias: bool = False
    conv_bias: bool = True
    activation: str = "silu"
    inner_norms: str = ""
    norm_eps: float = 1e-6

    layer_type = MAMBA

    @property
    def conv_dim(self) -> int:
        return self.intermediate_size

    @property
    def inner_sizes(self) -> tuple[int, int, int]:
        """Rows of x_proj: dt, B and C."""
        return (self.rank, self.state_size, self.state_size)

    @property
    def recurrent(self) -> RecurrentLayerConfig:
        return RecurrentLayerConfig(1, self.intermediate_size, self.state_size, self.conv_dim, self.conv_kernel)


@dataclass(frozen=True)
class HeadedMamba1Config(Mamba1Config):
    """Mamba1 in ``num_heads`` heads of equal size, each with matrices of its own for dt, B and C (Zamba)."""

    num_heads: int = 1

    @property
    def head_dim(self) -> int:
        """Channels of one head."""
        return self.intermediate_size // self.num_heads


def headed_mamba1_shapes(m: HeadedMamba1Config, hidden: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Name and shape of every parameter."""
    heads, size = m.num_heads, m.head_dim
    own = {
        "x_proj.weight": ("x_proj_weight", (heads, sum(m.inner_sizes), size)),
        "dt_proj.weight": ("dt_proj_weight", (heads, size, m.rank)),
        "dt_bias": ("dt_bias", (heads, size)),
        "A": ("A", (heads, size, m.state_size)),
        "D": ("D", (heads, size)),
    }
    for name, shape in mamba1_shapes(m, hidden):
        yield own.get(name, (name, shape))


def mamba1_shapes(m: Mamba1Config, hidden: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Name and shape of every parameter."""
    channels = m.intermediate_size
    yield "in_proj.weight", (2 * channels, hidden)
    if m.proj_bias:
        yield "in_proj.bias", (2 * channels,)
    yield "conv1d.weight", (channels, 1, m.conv_kernel)
    if m.conv_bias:
        yield "conv1d.bias", (channels,)
    yield "x_proj.weight", (sum(m.inner_sizes), channels)
    yield "dt_proj.weight", (channels, m.rank)
    yield "dt_bias", (channels,)
    yield "A", (channels, m.state_size)
    yield "D", (channels,)
    if m.inner_norms == "weighted":
        for name, size in zip(INNER_NORMS, m.inner_sizes, strict=True):
            yield f"{name}.weight", (size,)
    yield "out_proj.weight", (hidden, channels)
    if m.proj_bias:
        yield "out_proj.bias", (hidden,)
