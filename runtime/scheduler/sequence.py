"""One sequence of tokens between its request and its end."""

from __future__ import annotations

from enum import Enum

from hybridge.runtime.blocks import SequenceMemory
from hybridge.runtime.engines.host_copy import HostCopy
from hybridge.runtime.scheduler.request import ScheduledRequest


class State(Enum):
    """WAITING: without device memory. RUNNING: with device memory. FINISHED: ended."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


class ScheduledSequence:
    """Changed by its scheduler alone; only ``tokens`` grows from outside, through ``append``.

    order          its place among all: lower goes first and loses its memory last
    host_copy      its memory while it is on the host; host_bytes is what the scheduler counts for it
    cached_tokens  tokens that it found computed when it first ran
    admitted_at    time.perf_counter() when it first ran
    preemptions    how often it lost its memory
    logits_from    the first token of the prompt whose logits are still needed
    awaits_token   whether a step that has been committed chooses its next token, which is not known yet
    """

    __slots__ = (
        "admitted_at",
        "awaits_token",
        "cached_tokens",
        "cancelled",
        "host_bytes",
        "host_copy",
        "id",
        "logits_from",
        "memory",
        "order",
        "preemptions",
        "request",
        "state",
        "tokens",
    )

    def __init__(self, id_: int, request: ScheduledRequest, tokens: list[int], order: tuple[int, int, int]) -> None:
        self.id, self.request, self.tokens, self.order = id_, request, tokens, order
        self.memory = SequenceMemory(tokens, request.namespace, request.checkpoints)
        self.state = State.WAITING
        self.host_copy: HostCopy | None = None
        self.host_bytes = self.preemptions = 0
        # The first token whose logits are needed; those of the last one give the next token.
        self.logits_from = 0 if request.prompt_logits else len(request.prompt_ids) - 1
        self.cached_tokens: int | None = None
        self.admitted_at = 0.0
        self.cancelled = self.awaits_token = False

    def append(self, token: int) -> None:
        """The token that follows; it is fed in a later step."""
        self.tokens.append(token)

    @property
    def prompt_logits_left(self) -> int:
        """Tokens of the prompt whose logits are still needed."""
        return len(self.request.prompt_ids) - 1 - self.logits_from

    def prompt_logits_of(self, end: int) -> int:
        """Number of them before token ``end``."""
        return max(0, min(end, len(self.request.prompt_ids) - 1) - self.logits_from)

    @property
    def pending(self) -> int:
        """Tokens that are not in the cache yet, the one that it awaits included."""
        return len(self.tokens) + self.awaits_token - self.memory.length
