"""/v1/completions."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from hybridge.artifact import limits
from hybridge.serve.schemas.base import ListOf, ResponseBody, SamplingFields, Usage
from hybridge.serve.schemas.structured import ResponseFormat, StructuredOutputs

TokenId = Annotated[int, Field(ge=0, le=(1 << 31) - 1)]
TokenIds = Annotated[ListOf[TokenId], Field(min_length=1)]
Prompts = (
    str
    | Annotated[ListOf[str], Field(min_length=1, max_length=limits.REQUEST_ANSWERS)]
    | TokenIds
    | Annotated[ListOf[TokenIds], Field(min_length=1, max_length=limits.REQUEST_ANSWERS)]
)


class CompletionRequest(SamplingFields):
    """``echo`` with ``logprobs`` gives those of the prompt, too; ``max_tokens`` 0 returns only the prompt."""

    prompt: Prompts
    max_tokens: Annotated[int, Field(ge=0, le=(1 << 31) - 1)] | None = 16
    echo: bool | None = None
    logprobs: Annotated[int, Field(ge=0, le=limits.REQUEST_LOGPROBS)] | None = None
    best_of: int | None = None
    suffix: None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None


class CompletionLogprobs(ResponseBody):
    """text_offset: characters of the text before each token."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None] | None
    text_offset: list[int]


class CompletionChoice(ResponseBody):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Literal["stop", "length"]


class Completion(ResponseBody):
    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage
