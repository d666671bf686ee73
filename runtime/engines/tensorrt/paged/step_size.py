"""The size of a packed step: the lengths of its symbolic axes."""

from __future__ import annotations

from dataclasses import dataclass

from hybridge.artifact.paged import MAX_BLOCKS, NUM_LOGITS, ROW_BOUNDS, ROWS, TOKENS


@dataclass(frozen=True)
class StepSize:
    """Tokens, rows, columns of the block table and requested logits of a step, padding included; each at least 1."""

    tokens: int
    rows: int
    blocks: int
    logits: int

    @property
    def axes(self) -> dict[str, int]:
        """The sizes by symbolic axis."""
        return {
            TOKENS: self.tokens,
            ROWS: self.rows,
            ROW_BOUNDS: self.rows + 1,
            MAX_BLOCKS: self.blocks,
            NUM_LOGITS: self.logits,
        }
