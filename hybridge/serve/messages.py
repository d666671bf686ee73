"""From the messages of a request to those that a chat template reads."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from hybridge.serve.images import Images
from hybridge.serve.schemas.chat import ChatMessage
from hybridge.serve.schemas.tools import ToolCall


def template_messages(messages: Iterable[ChatMessage], images: Images) -> list[dict[str, Any]]:
    """Join the parts of a content and turn developer messages into system messages, as templates expect.

    Arguments of earlier calls become objects, which templates write in their own format. ApiError as of ``Images``.
    """
    found = []
    for message in messages:
        fields = message.model_dump(exclude_none=True, exclude={"content", "refusal", "tool_calls"})
        role = "system" if message.role == "developer" else message.role
        fields |= {"role": role, "content": images.text(message.content) or message.refusal or ""}
        if message.tool_calls:
            fields["tool_calls"] = [_tool_call(call) for call in message.tool_calls]
        found.append(fields)
    return found


def _tool_call(call: ToolCall) -> dict[str, Any]:
    function = {"name": call.function.name, "arguments": arguments_object(call.function.arguments)}
    return {"id": call.id, "type": "function", "function": function}


def arguments_object(text: str) -> Any:
    """The JSON object of a call's arguments; the text itself where it is none."""
    try:
        value = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, dict) else text
