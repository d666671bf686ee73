"""Fields that several endpoints share."""

from __future__ import annotations

import json
from functools import cache
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from hybridge.artifact.limits import REQUEST_BIASED_TOKENS

T = TypeVar("T")

# JSON integers may have any size; the engine's limits are checked by SamplingParams.
Int64 = Annotated[int, Field(ge=-(1 << 63), le=(1 << 63) - 1)]
PositiveInt = Annotated[int, Field(ge=1, le=(1 << 31) - 1)]
Finite = Annotated[float, Field(allow_inf_nan=False)]


def _json(value: T) -> T:
    """``value`` itself. ValueError for what Python reads as JSON, but no response can contain."""
    try:
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError):
        raise ValueError("expected JSON, found NaN, an infinity, an unpaired surrogate or too many levels") from None
    return value


def _few(value: Any) -> Any:
    if isinstance(value, dict) and len(value) > REQUEST_BIASED_TOKENS:
        raise ValueError(f"expected at most {REQUEST_BIASED_TOKENS} entries, found {len(value)}: leave some out")
    return value


JsonObject = Annotated[dict[str, Any], AfterValidator(_json)]
# Its first wrong item ends the check: an error for each of a million items would take minutes and gigabytes.
ListOf = Annotated[list[T], Field(fail_fast=True)]
JsonList = Annotated[list[Any], AfterValidator(_json)]
# Ends the check of a dictionary with more entries than any request needs.
Few = BeforeValidator(_few)
# Text that a response may repeat.
Text = Annotated[str, AfterValidator(_json)]

# Marks fields that clients send, and that change no answer here.
NO_EFFECT = Field(description="No effect.")
Label = Annotated[Text | None, NO_EFFECT]
# Every prompt is cached.
CacheControl = Annotated[dict[str, Any] | None, NO_EFFECT]

# For the schema of routes that answer with events if a request sets "stream".
EVENTS: dict[int | str, dict[str, Any]] = {200: {"content": {"text/event-stream": {}}}}


class RequestBody(BaseModel):
    """A request. Unknown fields that are null count as left out, because clients send back answers with all fields.

    Of other unknown fields, only the first is reported.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _without_unknown_nulls(cls, given: Any) -> Any:
        known = _names(cls)
        if not isinstance(given, dict) or given.keys() <= known:
            return given
        unknown = next((name for name, value in given.items() if value is not None and name not in known), None)
        return {name: value for name, value in given.items() if name in known or name == unknown}


@cache
def _names(kind: type[RequestBody]) -> frozenset[str]:
    """The fields of ``kind`` as clients name them."""
    return frozenset(field.alias or name for name, field in kind.model_fields.items())


class ResponseBody(BaseModel):
    """A response."""

    model_config = ConfigDict(extra="forbid")


class ErrorDetail(ResponseBody):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(ResponseBody):
    """An error in OpenAI's shape."""

    error: ErrorDetail


class AnthropicErrorDetail(ResponseBody):
    type: str
    message: str


class AnthropicErrorBody(ResponseBody):
    """An error in Anthropic's shape."""

    type: Literal["error"]
    error: AnthropicErrorDetail


# The only tier, under both of its names.
ServiceTier = Literal["auto", "default"] | None


class StreamOptions(RequestBody):
    """include_usage: a last chunk has the usage. continuous_usage_stats: every chunk has it."""

    include_usage: bool = False
    continuous_usage_stats: bool = False
    include_obfuscation: Literal[False] | None = None


class SamplingFields(RequestBody):
    """Parameters of ``SamplingParams`` as OpenAI and vLLM name them; those left out are the checkpoint's."""

    model: str
    temperature: Annotated[Finite, Field(ge=0, le=100)] | None = None
    top_p: Annotated[Finite, Field(gt=0, le=1)] | None = None
    top_k: Int64 | None = None
    min_p: Annotated[Finite, Field(ge=0, le=1)] | None = None
    repetition_penalty: Finite | None = None
    presence_penalty: Finite | None = None
    frequency_penalty: Finite | None = None
    seed: Int64 | None = None
    stop: str | ListOf[str] | None = None
    stop_token_ids: ListOf[Int64] | None = None
    ignore_eos: bool | None = None
    n: PositiveInt | None = None
    min_tokens: Annotated[int, Field(ge=0, le=(1 << 31) - 1)] | None = None
    logit_bias: Annotated[dict[str, Finite], Few] | None = None
    bad_words: ListOf[str] | None = None
    allowed_token_ids: ListOf[Int64] | None = None
    skip_special_tokens: bool | None = None
    include_stop_str_in_output: bool | None = None
    priority: Int64 | None = Field(None, description="Lower values run first; at least 0 where clients have keys.")
    prompt_cache_key: str | None = Field(None, description="Computed prefixes are shared within one key only.")
    cache_salt: str | None = Field(None, description="As prompt_cache_key; prefixes are shared where both are equal.")
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    timeout: Annotated[Finite, Field(gt=0)] | None = Field(None, description="Seconds, at most the server's own limit.")
    store: Literal[False] | None = None
    service_tier: ServiceTier = None
    prompt_cache_retention: Literal["in_memory", "in-memory"] | None = None
    user: Label = None
    metadata: Annotated[dict[str, Any] | None, NO_EFFECT] = None
    safety_identifier: Label = None


class PromptDetails(ResponseBody):
    cached_tokens: int


class CompletionDetails(ResponseBody):
    reasoning_tokens: int


class Usage(ResponseBody):
    """cached_tokens: prompt tokens found in the prefix cache."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails
