"""/v1/chat/completions."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from hybridge.artifact import limits
from hybridge.serve.schemas.base import (
    JsonObject,
    ListOf,
    PositiveInt,
    RequestBody,
    ResponseBody,
    SamplingFields,
    Usage,
)
from hybridge.serve.schemas.images import ImagePart
from hybridge.serve.schemas.structured import ResponseFormat, StructuredOutputs
from hybridge.serve.schemas.tools import FunctionCall, Tool, ToolCall, ToolChoice

Logprobs = Annotated[int, Field(ge=0, le=limits.REQUEST_LOGPROBS)]


class TextPart(RequestBody):
    type: Literal["text"]
    text: str


ContentPart = Annotated[TextPart | ImagePart, Field(discriminator="type")]


class ChatMessage(RequestBody):
    """reasoning_content: of an assistant's message, for templates that show it."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | ListOf[ContentPart] | None = None
    name: str | None = None
    reasoning_content: str | None = None
    refusal: str | None = None
    tool_calls: ListOf[ToolCall] | None = None
    tool_call_id: str | None = None


class ChatRequest(SamplingFields):
    """chat_template_kwargs: variables of the chat template, such as enable_thinking. thinking_budget: most tokens of
    reasoning."""

    messages: Annotated[ListOf[ChatMessage], Field(min_length=1, max_length=limits.CONVERSATION_MESSAGES)]
    max_tokens: PositiveInt | None = None
    max_completion_tokens: PositiveInt | None = None
    logprobs: bool | None = None
    top_logprobs: Logprobs | None = None
    chat_template_kwargs: JsonObject | None = None
    add_generation_prompt: bool = True
    reasoning_effort: str | None = None
    thinking_budget: Annotated[int, Field(ge=0, le=(1 << 31) - 1)] | None = None
    modalities: list[Literal["text"]] | None = Field(None, max_length=8)
    tools: ListOf[Tool] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None


class TopLogprob(ResponseBody):
    token: str
    logprob: float
    bytes: list[int] | None


class TokenLogprob(TopLogprob):
    top_logprobs: list[TopLogprob]


class ChoiceLogprobs(ResponseBody):
    content: list[TokenLogprob]
    refusal: None = None


class AnswerCall(ResponseBody):
    id: str
    type: Literal["function"]
    function: FunctionCall


class AnswerMessage(ResponseBody):
    """``content`` is None where there are only calls of tools."""

    role: Literal["assistant"]
    content: str | None
    refusal: None = None
    reasoning_content: str | None = None
    tool_calls: list[AnswerCall] | None = None


class ChatChoice(ResponseBody):
    index: int
    message: AnswerMessage
    logprobs: ChoiceLogprobs | None
    finish_reason: Literal["stop", "length", "tool_calls"]


class ChatCompletion(ResponseBody):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
