"""Responses of /v1/responses that clients can read again or continue by ``previous_response_id``; in memory only."""

from __future__ import annotations

import json
import sys
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hybridge.serve.errors import NOT_FOUND, ApiError

Data = Mapping[str, Any]
# Bytes of an entry of an OrderedDict, its links included.
_ENTRY = 200


@dataclass(frozen=True)
class StoredResponse:
    """response: the response object. input_items: of its request, each with an id.

    messages: the whole conversation, the answer included, for the chat template.
    """

    response: Data
    input_items: Sequence[Data]
    messages: Sequence[Data]

    def to_json(self) -> bytes:
        """Its stored form. Arguments of calls may have unpaired surrogates, which json.loads reads too."""
        parts = [self.response, self.input_items, self.messages]
        return json.dumps(parts, ensure_ascii=False).encode("utf-8", "surrogatepass")

    @classmethod
    def from_json(cls, stored: bytes) -> StoredResponse:
        """The response that ``to_json`` wrote."""
        return cls(*json.loads(stored))


@dataclass(eq=False)
class ConnectionTurns:
    """The last response of a WebSocket connection, and the conversation up to it: stored or not, the connection can
    continue it."""

    response: str | None = None
    messages: Sequence[Data] = ()

    def ended(self, response: str, messages: Sequence[Data]) -> None:
        """A response has ended."""
        self.response, self.messages = response, messages

    def forget(self, response: object) -> None:
        """Drop ``response``, if it is the last one."""
        if response == self.response:
            self.response, self.messages = None, ()


class StoredResponses:
    """The latest responses, in at most ``most_bytes`` of memory; the least recently used is dropped first.

    They are stored as JSON, of which Python's objects would take a multiple. A client sees only its own responses.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes, self._bytes = most_bytes, 0
        self._stored: OrderedDict[tuple[str, str], bytes] = OrderedDict()

    @property
    def enabled(self) -> bool:
        """Whether anything is stored."""
        return self._most_bytes > 0

    def add(self, tenant: str, stored: StoredResponse) -> None:
        """Store a response; one larger than the limit is not stored."""
        data, key = stored.to_json(), (tenant, stored.response["id"])
        if _size(key, data) > self._most_bytes:
            return
        self._stored[key] = data
        self._bytes += _size(key, data)
        while self._bytes > self._most_bytes:
            self._bytes -= _size(*self._stored.popitem(last=False))

    def get(self, tenant: str, response: str) -> StoredResponse:
        """A stored response; ApiError 404 for an unknown id, or one of another client."""
        key = (tenant, response)
        if key not in self._stored:
            raise ApiError(404, "response_id: expected a stored response, found none with this id", NOT_FOUND)
        self._stored.move_to_end(key)
        return StoredResponse.from_json(self._stored[key])

    def delete(self, tenant: str, response: str) -> None:
        """Delete a response; ApiError as in ``get``. Responses that continue it keep their own conversation."""
        self.get(tenant, response)
        key = (tenant, response)
        self._bytes -= _size(key, self._stored.pop(key))

    def messages(self, tenant: str, response: str) -> Sequence[Data]:
        """The conversation up to a response; ApiError 404 if it is not stored."""
        try:
            return self.get(tenant, response).messages
        except ApiError:
            raise ApiError(
                404,
                "previous_response_id: expected a stored response, found another, or one that was dropped: send the "
                "whole conversation as input",
                NOT_FOUND,
                "previous_response_not_found",
                "previous_response_id",
            ) from None


def _size(key: tuple[str, str], data: bytes) -> int:
    """Bytes of memory of one entry."""
    return sum(map(sys.getsizeof, (key, *key, data))) + _ENTRY
