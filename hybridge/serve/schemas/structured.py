"""The required form of an answer: OpenAI's response_format and vLLM's structured_outputs."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from hybridge.serve.schemas.base import NO_EFFECT, JsonObject, Label, ListOf, RequestBody

_LONGEST = 256 * 1024


class JsonSchemaFormat(RequestBody):
    """``schema``: a JSON schema, which every answer follows, strict or not."""

    name: Annotated[str, NO_EFFECT]
    description: Label = None
    schema_: Annotated[JsonObject | None, Field(alias="schema")] = None
    strict: Annotated[bool | None, NO_EFFECT] = None


class ResponseFormat(RequestBody):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None


class StructuredOutputs(RequestBody):
    """Exactly one of these: a JSON schema, a regular expression, texts to choose from, a Lark grammar of llguidance."""

    json_: Annotated[JsonObject | None, Field(alias="json")] = None
    regex: Annotated[str, Field(max_length=_LONGEST)] | None = None
    choice: Annotated[ListOf[str], Field(min_length=1, max_length=10_000)] | None = None
    grammar: Annotated[str, Field(max_length=_LONGEST)] | None = None
    json_object: Literal[True] | None = None
