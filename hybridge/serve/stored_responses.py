"""Conversations that later requests of /v1/responses continue by ``previous_response_id``; in memory only."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

from hybridge.serve.errors import NOT_FOUND, ApiError

Messages = Sequence[Mapping[str, Any]]


class StoredResponses:
    """The latest conversations, up to ``most_bytes`` of JSON in all; the least recently used is dropped first.

    A client sees only its own conversations.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes, self._bytes = most_bytes, 0
        self._stored: OrderedDict[tuple[str, str], tuple[Messages, int]] = OrderedDict()

    @property
    def enabled(self) -> bool:
        """Whether anything is stored."""
        return self._most_bytes > 0

    def add(self, tenant: str, response: str, messages: Messages) -> None:
        """Store the conversation up to a response, with its answer."""
        size = len(json.dumps(messages))
        if size > self._most_bytes:
            return
        self._stored[tenant, response] = messages, size
        self._bytes += size
        while self._bytes > self._most_bytes:
            _, (_, dropped) = self._stored.popitem(last=False)
            self._bytes -= dropped

    def messages(self, tenant: str, response: str) -> Messages:
        """The conversation up to a response; ApiError if it is not stored."""
        key = (tenant, response)
        if key not in self._stored:
            raise ApiError(
                404,
                "previous_response_id: expected a stored response, found another, or one that was dropped: send the "
                "whole conversation as input",
                NOT_FOUND,
                "previous_response_not_found",
                "previous_response_id",
            )
        self._stored.move_to_end(key)
        return self._stored[key][0]
