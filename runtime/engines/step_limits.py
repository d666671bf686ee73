"""How large a step of a paged engine may be."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class StepLimits:
    """The most new tokens and the most rows (padding included) of one step."""

    max_tokens: int
    max_rows: int
