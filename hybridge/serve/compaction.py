"""Compaction of a conversation: the model summarizes it, and later requests begin with the summary."""

from __future__ import annotations

import base64
import binascii
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from hybridge.serve.errors import ApiError

_REQUEST = (
    "Summarize our conversation so far, so that it can be continued from your summary alone. Keep all facts, names, "
    "numbers, decisions and open tasks."
)


def with_request(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """``messages``, and then the user's request for a summary; a last message of the user contains it, because many
    templates expect that roles take turns."""
    *earlier, last = messages
    if last["role"] != "user":
        return [*messages, {"role": "user", "content": _REQUEST}]
    return [*earlier, {**last, "content": f"{last['content']}\n\n{_REQUEST}"}]


def compaction_item(summary: str) -> dict[str, Any]:
    """The item that replaces the conversation."""
    return {"type": "compaction", "id": f"cmp_{uuid.uuid4().hex[:24]}", "encrypted_content": opaque(summary)}


def summary_messages(content: str) -> list[dict[str, Any]]:
    """The messages that stand for the conversation of a compaction item. ApiError for a content of another server."""
    return [{"role": "user", "content": _REQUEST}, {"role": "assistant", "content": text_of(content)}]


def opaque(text: str) -> str:
    """``text`` as a field "encrypted_content". It is the client's own conversation, so it is encoded without a key."""
    return base64.urlsafe_b64encode(text.encode()).decode()


def text_of(content: str) -> str:
    """The text of ``opaque``; ApiError for any other value."""
    try:
        return base64.b64decode(content, b"-_", validate=True).decode()
    except (binascii.Error, ValueError):
        raise ApiError(
            400,
            "encrypted_content: expected the value of an item that this server returned, found another",
            param="input",
        ) from None
