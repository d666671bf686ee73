"""From a request in Anthropic's format to a chat."""

from __future__ import annotations

from typing import Any

from hybridge.serve.chat import AUTO, NONE, REQUIRED, Chat
from hybridge.serve.errors import ApiError
from hybridge.serve.images import Images
from hybridge.serve.schemas.images import ImageBlock
from hybridge.serve.schemas.messages import (
    CountRequest,
    InputMessage,
    MessageToolChoice,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)

_CHOICES = {"auto": AUTO, "any": REQUIRED, "none": NONE}


def chat_of(body: CountRequest, images: Images) -> Chat:
    """ApiError for what no chat template supports: an answer for the model to continue, or a tool without a name.

    Also as of ``Images``.
    """
    if body.messages[-1].role == "assistant":
        raise ApiError(
            400,
            "messages: expected the last message to be the user's, found the assistant's: remove it",
            param="messages",
        )
    system = images.text(body.system)
    messages: list[dict[str, Any]] = [{"role": "system", "content": system}] if system else []
    for message in body.messages:
        messages += _messages(message, images)
    thinking, choice = body.thinking, body.tool_choice
    return Chat(
        messages,
        [_tool(tool.model_dump(exclude_none=True)) for tool in body.tools or ()],
        _choice(choice, bool(body.tools)),
        1 if choice is not None and choice.disable_parallel_tool_use else None,
        thinking_budget=None if thinking is None else thinking.budget_tokens,
        variables={} if thinking is None else {"enable_thinking": thinking.type != "disabled"},
    )


def _messages(message: InputMessage, images: Images) -> list[dict[str, Any]]:
    """Tool results become separate messages, before the user's text."""
    if isinstance(message.content, str):
        return [{"role": message.role, "content": message.content}]
    found: list[dict[str, Any]] = []
    for block in message.content:
        if isinstance(block, ToolResultBlock):
            content = images.text(block.content)
            if block.is_error:
                content = f"Error: {content}"
            found.append({"role": "tool", "tool_call_id": block.tool_use_id, "content": content})
    own: dict[str, Any] = {
        "role": message.role,
        "content": images.text([block for block in message.content if isinstance(block, (TextBlock, ImageBlock))]),
    }
    thinking = "".join(block.thinking for block in message.content if isinstance(block, ThinkingBlock))
    calls = [
        {"id": block.id, "type": "function", "function": {"name": block.name, "arguments": block.input}}
        for block in message.content
        if isinstance(block, ToolUseBlock)
    ]
    own |= {"reasoning_content": thinking} if thinking else {}
    own |= {"tool_calls": calls} if calls else {}
    return found if found and not own["content"] else [*found, own]


def _tool(tool: dict[str, Any]) -> dict[str, Any]:
    function = {"name": tool["name"], "parameters": tool["input_schema"]}
    function |= {key: tool[key] for key in ("description", "strict") if key in tool}
    return {"type": "function", "function": function}


def _choice(choice: MessageToolChoice | None, has_tools: bool) -> str:
    if choice is None:
        return AUTO if has_tools else NONE
    if choice.type != "tool":
        return _CHOICES[choice.type]
    if choice.name is None:
        raise ApiError(400, "tool_choice: expected the name of a tool, found none", param="tool_choice")
    return choice.name
