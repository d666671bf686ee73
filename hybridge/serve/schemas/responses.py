"""/v1/responses, as Open Responses specifies it (https://www.openresponses.org/specification)."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from hybridge.artifact import limits
from hybridge.serve.schemas.base import Finite, JsonList, JsonObject, PositiveInt, RequestBody, ResponseBody
from hybridge.serve.schemas.tools import Name

Status = Literal["in_progress", "completed", "incomplete"]


class ContentPart(RequestBody):
    type: Literal["input_text", "output_text", "reasoning_text", "summary_text", "text"]
    text: str
    annotations: JsonList | None = None
    logprobs: JsonList | None = None


class MessageItem(RequestBody):
    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[ContentPart]
    id: str | None = None
    status: Status | None = None
    phase: str | None = None


class FunctionCallItem(RequestBody):
    type: Literal["function_call"]
    call_id: str
    name: Name
    arguments: str
    id: str | None = None
    status: Status | None = None


class FunctionOutputItem(RequestBody):
    type: Literal["function_call_output"]
    call_id: str
    output: str | list[ContentPart]
    id: str | None = None
    status: Status | None = None


class ReasoningItem(RequestBody):
    type: Literal["reasoning"]
    id: str | None = None
    summary: list[ContentPart] | None = None
    content: list[ContentPart] | None = None
    encrypted_content: str | None = None
    status: Status | None = None


InputItem = FunctionCallItem | FunctionOutputItem | ReasoningItem | MessageItem


class ResponseTool(RequestBody):
    type: Literal["function"]
    name: Name
    description: str | None = None
    parameters: JsonObject | None = None
    strict: bool | None = None


class ResponseNamedTool(RequestBody):
    type: Literal["function"]
    name: Name


class TextFormat(RequestBody):
    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    description: str | None = None
    schema_: Annotated[JsonObject | None, Field(alias="schema")] = None
    strict: bool | None = None


class TextOptions(RequestBody):
    format: TextFormat | None = None
    verbosity: str | None = None


class ReasoningOptions(RequestBody):
    effort: str | None = None
    summary: str | None = None


class ResponsesRequest(RequestBody):
    """``input`` has the whole conversation, or what follows the response ``previous_response_id``."""

    model: str
    input: str | Annotated[list[InputItem], Field(min_length=1)]
    instructions: str | None = None
    max_output_tokens: PositiveInt | None = None
    temperature: Annotated[Finite, Field(ge=0, le=2)] | None = None
    top_p: Annotated[Finite, Field(gt=0, le=1)] | None = None
    presence_penalty: Annotated[Finite, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[Finite, Field(ge=-2, le=2)] | None = None
    stream: bool | None = None
    stream_options: dict[str, Any] | None = None
    tools: list[ResponseTool] | None = None
    tool_choice: Literal["none", "auto", "required"] | ResponseNamedTool | None = None
    parallel_tool_calls: bool | None = None
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    prompt_cache_key: str | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=limits.REQUEST_LOGPROBS)] | None = None
    previous_response_id: str | None = None
    store: bool | None = None
    # Accepted, and without effect here.
    metadata: dict[str, str] | None = None
    include: list[str] | None = None
    truncation: Literal["auto", "disabled"] | None = None
    background: Literal[False] | None = None
    user: str | None = None
    safety_identifier: str | None = None
    service_tier: str | None = None
    max_tool_calls: int | None = None


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
    status: Status
    error: None
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
