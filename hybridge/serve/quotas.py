"""Tokens per day of each client."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from hybridge.serve.api_keys import Client
from hybridge.serve.errors import RATE_LIMIT, ApiError

_DAY = 86_400


@dataclass(frozen=True)
class DayReservation:
    """Tokens that count as used from ``Quotas.reserve`` to ``Quotas.settle``. day: days since 1970."""

    day: int
    tokens: int


class Quotas:
    """Counts the tokens of prompts and answers since midnight (UTC), or since the start of the server.

    A running request counts as the most that it can use, so that concurrent requests cannot exceed a quota.
    """

    def __init__(self, tokens: int | None, clock: Callable[[], float] = time.time) -> None:
        """``tokens`` per day of clients without their own quota; None: unlimited. ``clock``: seconds since 1970."""
        self._tokens, self._clock = tokens, clock
        self._day = 0
        self._used: dict[str, int] = {}

    def check(self, client: Client) -> None:
        """ApiError 429 when nothing is left of the client's quota for today."""
        self._require(client, 1)

    def reserve(self, client: Client, tokens: int) -> DayReservation:
        """Reserve the most that a request can use; ApiError 429 when less than that is left of the client's quota."""
        self._require(client, tokens)
        self._add(client, tokens)
        return DayReservation(self._day, tokens)

    def settle(self, client: Client, reservation: DayReservation | None, tokens: int) -> None:
        """Count the tokens of prompts and answers, and end their reservation; those of earlier days have ended."""
        self._begin_day()
        if reservation is not None and reservation.day == self._day:
            tokens -= reservation.tokens
        self._add(client, tokens)

    def _require(self, client: Client, tokens: int) -> None:
        quota = self._tokens if client.tokens_per_day is None else client.tokens_per_day
        if quota is None:
            return
        self._begin_day()
        left = max(0, quota - self._used.get(client.name, 0))
        if tokens > left:
            remedy = "lower max_tokens, or try again tomorrow (UTC)" if left else "try again tomorrow (UTC)"
            raise ApiError(
                429,
                f"expected at most {left} more tokens of prompt and answer today, of {quota}, found up to {tokens}: "
                f"{remedy}",
                RATE_LIMIT,
                "insufficient_quota",
                retry_after=_DAY - self._clock() % _DAY,
            )

    def _add(self, client: Client, tokens: int) -> None:
        self._used[client.name] = self._used.get(client.name, 0) + tokens

    def _begin_day(self) -> None:
        day = int(self._clock() // _DAY)
        if day != self._day:
            self._day = day
            self._used.clear()
