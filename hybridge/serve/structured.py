"""From the fields of a request to the grammar of its answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hybridge.serve.errors import ApiError
from hybridge.serve.grammars import choice_grammar, json_grammar, lark_grammar, regex_grammar
from hybridge.serve.schemas.structured import ResponseFormat, StructuredOutputs

_OBJECT: dict[str, Any] = {"type": "object"}


def grammar_of(response_format: ResponseFormat | None, outputs: StructuredOutputs | None) -> str | None:
    """The grammar that the answer must follow, None for any text; ApiError where two are given."""
    found = None if response_format is None else _of_response_format(response_format)
    if outputs is None:
        return found
    if found is not None:
        raise ApiError(
            400,
            "structured_outputs: expected it alone, found response_format too: leave one out",
            param="structured_outputs",
        )
    return _of_outputs(outputs)


def _of_response_format(given: ResponseFormat) -> str | None:
    if given.type == "text":
        return None
    if given.type == "json_object":
        return json_grammar(_OBJECT)
    schema = None if given.json_schema is None else given.json_schema.schema_
    if schema is None:
        raise ApiError(400, "response_format: expected json_schema.schema, found none", param="response_format")
    return json_grammar(schema)


def _of_outputs(given: StructuredOutputs) -> str:
    makers: list[tuple[Callable[[Any], str], Any]] = [
        (json_grammar, given.json_),
        (regex_grammar, given.regex),
        (choice_grammar, given.choice),
        (lark_grammar, given.grammar),
        (json_grammar, None if given.json_object is None else _OBJECT),
    ]
    found = [make(value) for make, value in makers if value is not None]
    if len(found) != 1:
        raise ApiError(
            400,
            f"structured_outputs: expected one of json, regex, choice, grammar and json_object, found {len(found)}",
            param="structured_outputs",
        )
    return found[0]
