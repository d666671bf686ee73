"""A request for the scheduler."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ScheduledRequest:
    """A prompt of at least one token, and how many tokens may follow.

    priority: lower values first, where the policy knows priorities. namespace: requests share computed blocks only
    with those of the same one. sequences: how many sequences must be able to hold memory at the same time (beams).
    prompt_logits: whether the logits of all prompt tokens are needed, so that all are computed. checkpoints: numbers of
    prompt tokens after which a radix cache stores a state. whole_prompt: all tokens of the prompt are computed.
    """

    prompt_ids: tuple[int, ...]
    max_new_tokens: int
    priority: int = 0
    namespace: str = ""
    sequences: int = 1
    prompt_logits: bool = False
    checkpoints: tuple[int, ...] = ()
    whole_prompt: bool = False

    @property
    def most_tokens(self) -> int:
        """Tokens in the cache at the end; the last one generated is never fed back."""
        return len(self.prompt_ids) + self.max_new_tokens - 1
