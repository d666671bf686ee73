"""Tokens per day of each client."""

from __future__ import annotations

import time
from collections.abc import Callable

from hybridge.serve.api_keys import Client
from hybridge.serve.errors import RATE_LIMIT, ApiError

_DAY = 86_400


class Quotas:
    """Counts the tokens of prompts and answers since midnight (UTC), or since the start of the server."""

    def __init__(self, tokens: int | None, clock: Callable[[], float] = time.time) -> None:
        """``tokens`` per day of clients without their own quota; None: unlimited. ``clock``: seconds since 1970."""
        self._tokens, self._clock = tokens, clock
        self._day = 0
        self._used: dict[str, int] = {}

    def check(self, client: Client) -> None:
        """ApiError 429 when the client has used its tokens of today."""
        quota = self._tokens if client.tokens_per_day is None else client.tokens_per_day
        if quota is None:
            return
        self._begin_day()
        if self._used.get(client.name, 0) >= quota:
            raise ApiError(
                429,
                f"expected at most {quota} tokens per day, found that many used: try again tomorrow (UTC)",
                RATE_LIMIT,
                "insufficient_quota",
                retry_after=_DAY - self._clock() % _DAY,
            )

    def use(self, client: Client, tokens: int) -> None:
        """Count tokens of prompts and answers."""
        self._begin_day()
        self._used[client.name] = self._used.get(client.name, 0) + tokens

    def _begin_day(self) -> None:
        day = int(self._clock() // _DAY)
        if day != self._day:
            self._day = day
            self._used.clear()
