"""The limits of a scheduler."""

from __future__ import annotations

from dataclasses import dataclass, field

from hybridge.artifact.errors import EngineError
from hybridge.runtime.scheduler.policy import Fcfs, Policy


@dataclass(frozen=True)
class SchedulerSettings:
    """max_tokens: new tokens of one step. max_rows: sequences that run at a time. max_seq_len: tokens of a sequence.

    swap_bytes: host memory for sequences that lost their place; 0, or when it is full: they are computed again.
    block_bytes, slot_bytes: what a block and a slot take there.
    watermark: share of the blocks that new sequences leave free, so that running ones can grow for a while.
    prompt_logits: about how many prompt tokens' logits one step returns, besides those to sample from.
    """

    max_tokens: int
    max_rows: int
    max_seq_len: int
    policy: Policy = field(default_factory=Fcfs)
    swap_bytes: int = 0
    block_bytes: int = 0
    slot_bytes: int = 0
    watermark: float = 0.02
    prompt_logits: int = 1024

    def __post_init__(self) -> None:
        if not 1 <= self.max_rows <= self.max_tokens:
            raise EngineError(
                f"expected a token budget of at least the {self.max_rows} rows that decode together, found "
                f"{self.max_tokens}: raise max_tokens or lower max_rows"
            )
        if not 0 <= self.watermark < 1:
            raise EngineError(f"watermark: expected a share from 0 to below 1, found {self.watermark}")
