"""The second kernel of chunked ``gated_delta_rule`` with warps of their own for the outputs: 16-bit data."""

from __future__ import annotations

from dataclasses import dataclass

from hybridge.trt_plugins.kernels.source import KernelSource

FILE, ENTRY = "gated_delta_rule/prefill_column_pairs.cu", "gated_delta_rule_prefill_pairs"
MOST_WARPS = 4
LARGEST_KEY = 128
_LOADERS = 4
_WARP = 32
_OPERAND_BYTES = 16 * _WARP  # of a left operand of sixteen keys or tokens
_TOKEN_OPERANDS = 4  # of a chunk


@dataclass(frozen=True)
class ColumnPairs:
    """The macros of prefill_column_pairs.cu. warps: those of the state; stages_bytes: as prefill_columns.cu."""

    warps: int
    key_size: int
    channel_decay: bool
    stages_bytes: int

    @property
    def threads(self) -> int:
        return _WARP * (2 * self.warps + _LOADERS)

    @property
    def shared_bytes(self) -> int:
        """Size of the stages and of Exchange in prefill_column_exchange.cuh."""
        operands = _OPERAND_BYTES * (self.key_size // 16 + _TOKEN_OPERANDS)
        sizes = 8 * (_WARP if self.channel_decay else 2)
        return self.stages_bytes + self.warps * (operands + sizes)

    def source(self, defines: dict[str, object], hot: bool) -> KernelSource:
        """defines: those that it shares with prefill_columns.cu."""
        return KernelSource.of(FILE, ENTRY, defines | {"WARPS": self.warps}, hot=hot)
