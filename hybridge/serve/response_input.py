"""From a request of /v1/responses to a chat."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from hybridge.serve.chat import AUTO, NONE, Chat
from hybridge.serve.compaction import summary_messages, text_of
from hybridge.serve.errors import ApiError
from hybridge.serve.grammars import json_grammar
from hybridge.serve.images import Images
from hybridge.serve.messages import arguments_object
from hybridge.serve.schemas.responses import (
    CompactionItem,
    ContentPart,
    FunctionCallItem,
    FunctionOutputItem,
    InputItem,
    MessageItem,
    ReasoningItem,
    ResponsesRequest,
    TextFormat,
)

_ID_PREFIXES = {
    "message": "msg",
    "function_call": "fc",
    "function_call_output": "fco",
    "reasoning": "rs",
    "compaction": "cmp",
}


def conversation_of(
    given: str | Sequence[InputItem], images: Images, earlier: Sequence[Mapping[str, Any]] = ()
) -> list[dict[str, Any]]:
    """The messages of an input that follows ``earlier`` ones.

    ApiError for the output of a call that is in neither, and as of ``Images``.
    """
    messages = [{"role": "user", "content": given}] if isinstance(given, str) else _messages(given, images)
    calls: set[str] = set()
    for message in (*earlier, *messages):
        calls.update(call["id"] for call in message.get("tool_calls", ()))
        if message["role"] == "tool" and message["tool_call_id"] not in calls:
            found = message["tool_call_id"][:80]
            raise ApiError(
                400,
                f"input: expected the function_call of each function_call_output, found none with call_id {found!r}",
                param="input",
            )
    return messages


def with_instructions(messages: Sequence[Mapping[str, Any]], instructions: str | None) -> Sequence[Mapping[str, Any]]:
    """``messages`` after the instructions."""
    return [{"role": "system", "content": instructions}, *messages] if instructions else messages


def input_items(body: ResponsesRequest) -> list[dict[str, Any]]:
    """The input as items, each with an id and a list of parts, as clients read it later."""
    items = [MessageItem(role="user", content=body.input)] if isinstance(body.input, str) else body.input
    return [_shown(item) for item in items]


def _shown(item: InputItem) -> dict[str, Any]:
    shown = item.model_dump(exclude_none=True)
    shown.setdefault("id", f"{_ID_PREFIXES[item.type]}_{uuid.uuid4().hex[:24]}")
    if isinstance(item, MessageItem):
        shown.setdefault("status", "completed")
        if isinstance(item.content, str):
            kind = "output_text" if item.role == "assistant" else "input_text"
            more: dict[str, Any] = {"annotations": []} if item.role == "assistant" else {}
            shown["content"] = [{"type": kind, "text": item.content, **more}]
    return shown


def chat_of(body: ResponsesRequest, messages: Sequence[Mapping[str, Any]]) -> Chat:
    """``messages`` are the conversation without the instructions. ApiError for a format without its schema."""
    choice = body.tool_choice or (AUTO if body.tools else NONE)
    effort = None if body.reasoning is None else body.reasoning.effort
    tools = [tool.model_dump(exclude_none=True, exclude={"type"}) for tool in body.tools or ()]
    return Chat(
        with_instructions(messages, body.instructions),
        [{"type": "function", "function": tool} for tool in tools],
        choice if isinstance(choice, str) else choice.name,
        1 if body.parallel_tool_calls is False else body.max_tool_calls,
        None if body.text is None or body.text.format is None else _grammar(body.text.format),
        variables={} if effort is None else {"reasoning_effort": effort},
    )


def _messages(items: Sequence[InputItem], images: Images) -> list[dict[str, Any]]:
    """Reasoning and calls of functions belong to one message of the assistant."""
    found: list[dict[str, Any]] = []

    def assistant() -> dict[str, Any]:
        if not found or found[-1]["role"] != "assistant":
            found.append({"role": "assistant", "content": ""})
        return found[-1]

    for item in items:
        if isinstance(item, FunctionCallItem):
            function = {"name": item.name, "arguments": arguments_object(item.arguments)}
            call = {"id": item.call_id, "type": "function", "function": function}
            assistant().setdefault("tool_calls", []).append(call)
        elif isinstance(item, FunctionOutputItem):
            found.append({"role": "tool", "tool_call_id": item.call_id, "content": images.text(item.output)})
        elif isinstance(item, ReasoningItem):
            found.append({"role": "assistant", "content": "", "reasoning_content": _reasoning(item)})
        elif isinstance(item, CompactionItem):
            found += summary_messages(item.encrypted_content)
        elif item.role == "assistant" and found and found[-1]["role"] == "assistant" and not found[-1]["content"]:
            found[-1]["content"] = images.text(item.content)
        else:
            role = "system" if item.role == "developer" else item.role
            found.append({"role": role, "content": images.text(item.content)})
    return found


def _reasoning(item: ReasoningItem) -> str:
    if item.content:
        return _text(item.content)
    return text_of(item.encrypted_content) if item.encrypted_content else _text(item.summary or [])


def _text(parts: Sequence[ContentPart]) -> str:
    return "".join([part.text for part in parts])


def _grammar(given: TextFormat) -> str | None:
    if given.type == "text":
        return None
    if given.type == "json_object":
        return json_grammar({"type": "object"})
    if given.schema_ is None:
        raise ApiError(400, "text.format: expected a schema, found none", param="text.format.schema")
    return json_grammar(given.schema_)
