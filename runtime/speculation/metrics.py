"""Counters of speculative decoding."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class SpeculationMetrics:
    """proposed, accepted: draft tokens that ran, and those that the model accepted; requests cancelled during the step
    count none.

    chosen: decoded rows by the number of draft tokens that they ran with; a prompt's last chunk is none, however short.
    state_bytes: device memory of the states of one draft token of one row; 0 for a model without recurrent layers.
    failures: how often the drafter failed.
    """

    state_bytes: int = 0
    proposed: int = 0
    accepted: int = 0
    chosen: Counter[int] = field(default_factory=Counter)
    failures: int = 0

    @property
    def rows(self) -> int:
        """Decoded rows."""
        return sum(self.chosen.values())

    @property
    def acceptance(self) -> float | None:
        """Share of the draft tokens that were accepted; None before the first."""
        return self.accepted / self.proposed if self.proposed else None

    @property
    def tokens_per_row(self) -> float | None:
        """New tokens of a decoded row, its own last one included; None before the first row."""
        rows = self.rows
        return 1 + self.accepted / rows if rows else None

    def to_json(self) -> dict[str, object]:
        """Every count and what follows from them, as a JSON object."""
        return {
            "rows": self.rows,
            "proposed": self.proposed,
            "accepted": self.accepted,
            "acceptance": self.acceptance,
            "tokens_per_row": self.tokens_per_row,
            "rows_by_draft_tokens": {str(count): rows for count, rows in sorted(self.chosen.items())},
            "state_bytes_per_draft_token": self.state_bytes,
            "drafter_failures": self.failures,
        }

    def observe(self, proposed: int, accepted: int) -> None:
        """A row ran with ``proposed`` draft tokens, of which ``accepted`` were right."""
        self.proposed += proposed
        self.accepted += accepted
        self.chosen[proposed] += 1
