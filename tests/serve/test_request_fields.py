"""Every field of a request is read by the server, or its description says that it has no effect."""

from __future__ import annotations

import ast
import importlib
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest

import hybridge.serve
from hybridge.serve import sampling, schemas
from hybridge.serve.schemas.base import NO_EFFECT, RequestBody
from tests.serve.running import Running

# Passed to templates as parts of a whole (model_dump).
WHOLE = {
    "ChatMessage": {"name", "tool_call_id", "reasoning_content"},
    "FunctionTool": {"description", "parameters"},
    "ResponseTool": {"description", "parameters"},
    "CustomTool": {"description", "input_schema"},
}
SOURCES = Path(hybridge.serve.__path__[0])


def models() -> list[type[RequestBody]]:
    for module in pkgutil.iter_modules(schemas.__path__):
        importlib.import_module(f"{schemas.__name__}.{module.name}")
    found: list[type[RequestBody]] = []
    waiting = [RequestBody]
    while waiting:
        for each in waiting.pop().__subclasses__():
            found.append(each)
            waiting.append(each)
    return found


def names_read() -> set[str]:
    """The attributes that the server's modules read, and the names of parameters that it copies."""
    found = set(sampling._SAME)
    for path in SOURCES.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                found.add(node.attr)
            elif isinstance(node, (ast.For, ast.comprehension)):
                found.update(texts(node.iter))
            elif isinstance(node, ast.Assign):
                found.update(texts(node.value))
    return found


def texts(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Tuple):
        yield from (each.value for each in node.elts if isinstance(each, ast.Constant) and isinstance(each.value, str))


def is_fixed(annotation: Any) -> bool:
    """Whether a field has only values that describe what the server does."""
    if annotation is type(None) or get_origin(annotation) is Literal:
        return True
    return bool(get_args(annotation)) and all(map(is_fixed, get_args(annotation)))


def test_every_field_is_read_refused_or_without_effect() -> None:
    read = names_read()
    unused = [
        f"{model.__name__}.{name}"
        for model in models()
        for name, field in model.model_fields.items()
        if field.description != NO_EFFECT.description
        and name not in read
        and name not in WHOLE.get(model.__name__, ())
        and not is_fixed(field.annotation)
    ]
    assert not unused


USER = [{"role": "user", "content": "Hi"}]
RESPONSE = {"input": "Hi", "max_output_tokens": 1}


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/chat/completions", {"messages": USER, "service_tier": "flex"}),
        ("/v1/chat/completions", {"messages": USER, "store": True}),
        ("/v1/chat/completions", {"messages": USER, "prompt_cache_retention": "24h"}),
        ("/v1/completions", {"prompt": "Hi", "stream": True, "stream_options": {"include_obfuscation": True}}),
        ("/v1/responses", {**RESPONSE, "truncation": "auto"}),
        ("/v1/responses", {**RESPONSE, "include": ["file_search_call.results"]}),
        ("/v1/responses", {**RESPONSE, "text": {"verbosity": "low"}}),
        ("/v1/responses", {**RESPONSE, "reasoning": {"summary": "detailed"}}),
        ("/v1/responses", {**RESPONSE, "background": True}),
    ],
)
def test_what_the_server_does_not_offer_is_refused_by_name(served: Running, path: str, fields: dict[str, Any]) -> None:
    error = served.refusal(path, 400, **fields)
    assert error["param"].split(".")[0] in fields and "expected" in error["message"]


def test_unknown_fields_that_are_null_count_as_left_out(served: Running) -> None:
    message = {**USER[0], "audio": None}
    assert served.post("/v1/chat/completions", messages=[message], max_tokens=1, verbosity=None)["choices"]
    error = served.refusal("/v1/chat/completions", 400, messages=[{**message, "audio": {}}], max_tokens=1)
    assert error["param"] == "messages.0.audio"
