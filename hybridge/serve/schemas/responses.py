"""/v1/responses, as Open Responses specifies it (https://www.openresponses.org/specification)."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from hybridge.artifact import limits
from hybridge.serve.schemas.base import (
    NO_EFFECT,
    Few,
    Finite,
    JsonList,
    JsonObject,
    Label,
    ListOf,
    PositiveInt,
    RequestBody,
    ResponseBody,
    ServiceTier,
    Text,
)
from hybridge.serve.schemas.images import InputImagePart
from hybridge.serve.schemas.tools import Name, Strict

Status = Literal["in_progress", "completed", "incomplete"]
ItemStatus = Annotated[Status | None, NO_EFFECT]
ENCRYPTED_REASONING = "reasoning.encrypted_content"


class ContentPart(RequestBody):
    type: Literal["input_text", "output_text", "reasoning_text", "summary_text", "text"]
    text: str
    annotations: Annotated[JsonList | None, NO_EFFECT] = None
    logprobs: Annotated[JsonList | None, NO_EFFECT] = None


InputPart = Annotated[ContentPart | InputImagePart, Field(discriminator="type")]


class MessageItem(RequestBody):
    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: str | ListOf[InputPart]
    id: Label = None
    status: ItemStatus = None
    phase: Label = None


class FunctionCallItem(RequestBody):
    type: Literal["function_call"]
    call_id: str
    name: Name
    arguments: str
    id: Label = None
    status: ItemStatus = None


class FunctionOutputItem(RequestBody):
    type: Literal["function_call_output"]
    call_id: str
    output: str | ListOf[InputPart]
    id: Label = None
    status: ItemStatus = None


class ReasoningItem(RequestBody):
    """The text is that of ``content``, or else of ``encrypted_content`` or ``summary``."""

    type: Literal["reasoning"]
    id: Label = None
    summary: ListOf[ContentPart] | None = None
    content: ListOf[ContentPart] | None = None
    encrypted_content: str | None = None
    status: ItemStatus = None


class CompactionItem(RequestBody):
    """Stands for a conversation that /v1/responses/compact summarized."""

    type: Literal["compaction"]
    encrypted_content: str
    id: Label = None


def _item_type(item: Any) -> Any:
    return item.get("type", "message") if isinstance(item, dict) else getattr(item, "type", None)


InputItem = Annotated[
    Annotated[MessageItem, Tag("message")]
    | Annotated[FunctionCallItem, Tag("function_call")]
    | Annotated[FunctionOutputItem, Tag("function_call_output")]
    | Annotated[ReasoningItem, Tag("reasoning")]
    | Annotated[CompactionItem, Tag("compaction")],
    Discriminator(_item_type),
]
Items = Annotated[ListOf[InputItem], Field(min_length=1, max_length=limits.CONVERSATION_MESSAGES)]


class ResponseTool(RequestBody):
    type: Literal["function"]
    name: Name
    description: Text | None = None
    parameters: JsonObject | None = None
    strict: Strict = None


class ResponseNamedTool(RequestBody):
    type: Literal["function"]
    name: Name


class TextFormat(RequestBody):
    type: Literal["text", "json_object", "json_schema"]
    name: Label = None
    description: Label = None
    schema_: Annotated[JsonObject | None, Field(alias="schema")] = None
    strict: Annotated[bool | None, NO_EFFECT] = None


class TextOptions(RequestBody):
    format: TextFormat | None = None
    verbosity: Literal["medium"] | None = None


class ReasoningOptions(RequestBody):
    """effort: for the chat template. summary: reasoning is shown as it is, so that "auto" gives no summary."""

    effort: Text | None = None
    summary: Literal["auto"] | None = None


class ResponsesStreamOptions(RequestBody):
    include_obfuscation: Literal[False] | None = None


class ResponsesRequest(RequestBody):
    """``input`` has the whole conversation, or what follows the response ``previous_response_id``."""

    model: str
    input: str | Items
    instructions: Text | None = None
    max_output_tokens: PositiveInt | None = None
    temperature: Annotated[Finite, Field(ge=0, le=2)] | None = None
    top_p: Annotated[Finite, Field(gt=0, le=1)] | None = None
    presence_penalty: Annotated[Finite, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[Finite, Field(ge=-2, le=2)] | None = None
    stream: bool | None = None
    stream_options: ResponsesStreamOptions | None = None
    tools: ListOf[ResponseTool] | None = None
    tool_choice: Literal["none", "auto", "required"] | ResponseNamedTool | None = None
    parallel_tool_calls: bool | None = None
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    prompt_cache_key: Text | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=limits.REQUEST_LOGPROBS)] | None = None
    previous_response_id: Text | None = None
    store: bool | None = None
    include: ListOf[Literal["reasoning.encrypted_content", "message.output_text.logprobs"]] | None = None
    truncation: Literal["disabled"] | None = None
    background: Literal[False] | None = None
    service_tier: ServiceTier = None
    max_tool_calls: PositiveInt | None = None
    metadata: Annotated[dict[Text, Text], Few] | None = None
    user: Label = None
    safety_identifier: Label = None


class InputDetails(ResponseBody):
    cached_tokens: int


class OutputDetails(ResponseBody):
    reasoning_tokens: int


class ResponseUsage(ResponseBody):
    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


class ResponseObject(ResponseBody):
    """``output``: items of reasoning, messages and calls of functions."""

    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None
    status: Status | Literal["failed"]
    error: dict[str, str] | None
    incomplete_details: dict[str, str] | None
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    model: str
    output: list[dict[str, Any]]
    parallel_tool_calls: bool
    previous_response_id: str | None
    reasoning: dict[str, Any] | None
    store: bool
    background: Literal[False]
    temperature: float
    top_p: float
    presence_penalty: float
    frequency_penalty: float
    top_logprobs: int
    text: dict[str, Any]
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    truncation: Literal["disabled"]
    usage: ResponseUsage | None
    metadata: dict[str, str]
    user: str | None
    safety_identifier: str | None
    prompt_cache_key: str | None
    service_tier: str


class CompactRequest(RequestBody):
    """``input`` has the conversation, or what follows the response ``previous_response_id``."""

    model: str
    input: str | Items | None = None
    previous_response_id: Text | None = None
    instructions: Text | None = None
    prompt_cache_key: Text | None = None


class CompactedResponse(ResponseBody):
    """``output``: one item that replaces the conversation in later requests."""

    id: str
    object: Literal["response.compaction"]
    created_at: int
    output: list[dict[str, Any]]
    usage: ResponseUsage


class DeletedResponse(ResponseBody):
    id: str
    object: Literal["response"]
    deleted: Literal[True]


class InputItemList(ResponseBody):
    """first_id, last_id: of ``data``; None if it is empty."""

    object: Literal["list"]
    data: list[dict[str, Any]]
    first_id: str | None
    last_id: str | None
    has_more: bool
