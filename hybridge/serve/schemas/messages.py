"""/v1/messages, in Anthropic's format (https://docs.anthropic.com/en/api/messages)."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from hybridge.artifact import limits
from hybridge.serve.schemas.base import (
    NO_EFFECT,
    CacheControl,
    Finite,
    JsonObject,
    ListOf,
    PositiveInt,
    RequestBody,
    ResponseBody,
)
from hybridge.serve.schemas.images import ImageBlock
from hybridge.serve.schemas.tools import Name, Strict


class TextBlock(RequestBody):
    type: Literal["text"]
    text: str
    cache_control: CacheControl = None
    citations: None = None


# What users and tools say.
ContentBlock = Annotated[TextBlock | ImageBlock, Field(discriminator="type")]


class ThinkingBlock(RequestBody):
    type: Literal["thinking"]
    thinking: str
    signature: Annotated[str, NO_EFFECT] = ""


class ToolUseBlock(RequestBody):
    type: Literal["tool_use"]
    id: str
    name: Name
    input: JsonObject
    cache_control: CacheControl = None


class ToolResultBlock(RequestBody):
    type: Literal["tool_result"]
    tool_use_id: str
    content: str | ListOf[ContentBlock] | None = None
    is_error: bool | None = None
    cache_control: CacheControl = None


InputBlock = Annotated[
    TextBlock | ImageBlock | ThinkingBlock | ToolUseBlock | ToolResultBlock, Field(discriminator="type")
]


class InputMessage(RequestBody):
    role: Literal["user", "assistant"]
    content: str | ListOf[InputBlock]


class CustomTool(RequestBody):
    name: Name
    description: str | None = None
    input_schema: JsonObject
    strict: Strict = None
    type: Literal["custom"] | None = None
    cache_control: CacheControl = None


class MessageToolChoice(RequestBody):
    """any: some tool has to be used; tool: the one called ``name``."""

    type: Literal["auto", "any", "tool", "none"]
    name: Name | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(RequestBody):
    """budget_tokens: most tokens of reasoning. display: "omitted" leaves the text of the reasoning out."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: PositiveInt | None = None
    display: Literal["summarized", "omitted"] | None = None


class CountRequest(RequestBody):
    """The fields that determine the tokens of a prompt."""

    model: str
    messages: Annotated[ListOf[InputMessage], Field(min_length=1, max_length=limits.CONVERSATION_MESSAGES)]
    system: str | ListOf[TextBlock] | None = None
    tools: ListOf[CustomTool] | None = None
    tool_choice: MessageToolChoice | None = None
    thinking: Thinking | None = None
    cache_control: CacheControl = None


class MessagesRequest(CountRequest):
    max_tokens: PositiveInt
    temperature: Annotated[Finite, Field(ge=0, le=1)] | None = None
    top_p: Annotated[Finite, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=0, le=(1 << 31) - 1)] | None = None
    stop_sequences: ListOf[str] | None = None
    stream: bool | None = None
    service_tier: Literal["auto", "standard_only"] | None = None
    metadata: Annotated[dict[str, Any] | None, NO_EFFECT] = None


class MessageUsage(ResponseBody):
    """input_tokens: without those found in the prefix cache."""

    input_tokens: int
    output_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int


class Message(ResponseBody):
    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[dict[str, Any]]
    stop_reason: Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"] | None
    stop_sequence: str | None
    usage: MessageUsage


class TokenCount(ResponseBody):
    input_tokens: int
