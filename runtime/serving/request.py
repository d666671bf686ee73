"""Requests to the serving loop, and its output."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from hybridge.runtime.generation import Piece, Request
from hybridge.runtime.scheduler import ScheduledRequest
from hybridge.runtime.serving.prompt_pooling import MEAN


@dataclass(frozen=True)
class ServingRequest:
    """A checked prompt with its sampling parameters, and its place among others.

    index: what the pieces are marked with. priority: lower first, where the policy knows priorities. namespace:
    computed blocks are shared with requests of the same one only. checkpoints: numbers of prompt tokens after which a
    radix cache stores a state. pooling: MEAN or LAST for the hidden state of the prompt (``PromptPooling``). whole:
    the only piece of an answer is its last, which holds all of it: no step makes text before.
    """

    request: Request
    index: int = 0
    priority: int = 0
    namespace: str = ""
    checkpoints: tuple[int, ...] = ()
    pooling: str | None = None
    whole: bool = False

    def scheduled(self) -> ScheduledRequest:
        """The request for the scheduler."""
        request, params = self.request, self.request.params
        return ScheduledRequest(
            request.prompt_ids,
            request.max_new_tokens,
            self.priority,
            self.namespace,
            max(1, params.beam_width),
            params.prompt_logprobs is not None,
            self.checkpoints,
            self.pooling == MEAN,
        )


class Output(NamedTuple):
    """One step of one request: a piece, or the error that ended it."""

    request_id: int
    piece: Piece | None = None
    error: Exception | None = None
