"""Requests and tokens per minute of each client."""

from __future__ import annotations

import time
from collections.abc import Callable

from hybridge.serve.errors import RATE_LIMIT, ApiError

_MINUTE = 60.0


class _Bucket:
    """Fills up to ``size`` within a minute; becomes negative when a request used more than it had left."""

    def __init__(self, size: int, now: float) -> None:
        self._size, self._level, self._since = size, float(size), now

    def seconds_until(self, count: float, now: float) -> float:
        """Seconds until ``count`` may be taken; 0 for now."""
        self._fill(now)
        missing = min(count, self._size) - self._level
        return max(0.0, missing * _MINUTE / self._size)

    def take(self, count: float, now: float) -> None:
        self._fill(now)
        self._level -= count

    def _fill(self, now: float) -> None:
        self._level = min(self._size, self._level + (now - self._since) * self._size / _MINUTE)
        self._since = now


class RateLimits:
    """Token buckets by client; without a limit nothing is counted."""

    def __init__(self, requests: int | None, tokens: int | None, clock: Callable[[], float] = time.monotonic) -> None:
        """Per minute; None: unlimited."""
        self._sizes = {"requests": requests, "tokens": tokens}
        self._clock = clock
        self._buckets: dict[tuple[str, str], _Bucket] = {}

    def take_request(self, client: str) -> None:
        """Count a request; ApiError 429 when the client has made too many, or used too many tokens."""
        now = self._clock()
        for kind, least in (("requests", 1), ("tokens", 1)):
            bucket = self._bucket(client, kind, now)
            seconds = 0.0 if bucket is None else bucket.seconds_until(least, now)
            if seconds:
                raise ApiError(
                    429,
                    f"expected at most {self._sizes[kind]} {kind} per minute, found more: try again later",
                    RATE_LIMIT,
                    "rate_limit_exceeded",
                    retry_after=seconds,
                )
        bucket = self._bucket(client, "requests", now)
        if bucket is not None:
            bucket.take(1, now)

    def reserve_tokens(self, client: str, most: int) -> int:
        """Count the most tokens that a request can use, or those of a minute if it is fewer, and return their number.

        ApiError 429 when so many are not left.
        """
        now = self._clock()
        size, bucket = self._sizes["tokens"], self._bucket(client, "tokens", now)
        if size is None or bucket is None:
            return 0
        reserved = min(most, size)
        if seconds := bucket.seconds_until(reserved, now):
            raise ApiError(
                429,
                f"expected at most {size} tokens of prompts and answers per minute, found up to {most} beside those of "
                "other requests: lower max_tokens, or try again later",
                RATE_LIMIT,
                "rate_limit_exceeded",
                retry_after=seconds,
            )
        bucket.take(reserved, now)
        return reserved

    def settle_tokens(self, client: str, reserved: int, used: int) -> None:
        """Count the tokens that a request used instead of those that it reserved; too many delay the next request."""
        now = self._clock()
        bucket = self._bucket(client, "tokens", now)
        if bucket is not None:
            bucket.take(used - reserved, now)

    def _bucket(self, client: str, kind: str, now: float) -> _Bucket | None:
        size = self._sizes[kind]
        if size is None:
            return None
        return self._buckets.setdefault((client, kind), _Bucket(size, now))
