"""From the messages of a request to those that a chat template reads."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hybridge.serve.schemas.chat import ChatMessage


def template_messages(messages: Iterable[ChatMessage]) -> list[dict[str, Any]]:
    """Parts of a content are joined, and a developer's message is one of the system, as templates expect."""
    found = []
    for message in messages:
        fields = message.model_dump(exclude_none=True, exclude={"refusal"})
        content = message.content
        if isinstance(content, list):
            content = "".join(part.text for part in content)
        role = "system" if message.role == "developer" else message.role
        found.append({**fields, "role": role, "content": content or ""})
    return found
