"""Run a checkpoint's Jinja template as untrusted code.

The conventions are those of transformers: trimmed blocks, loop controls, a JSON filter that escapes no HTML,
raise_exception, strftime_now, and a generation block that is printed as if it were not there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox
import jinja2.utils

from artifact.errors import ArtifactError, RequestError


class _GenerationBlock(jinja2.ext.Extension):
    """{% generation %} ... {% endgeneration %} marks text of the assistant for training; here it is only text."""

    tags = {"generation"}  # noqa: RUF012 (jinja2 reads a class attribute)

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        line = next(parser.stream).lineno
        return jinja2.nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


class _Dict:
    """``dict(...)`` for templates, without the attributes of the type."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)


class _Namespace(jinja2.utils.Namespace):
    """``namespace(...)`` for templates. Names with a leading underscore would let a template pose as a callable."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        values = dict(*args, **kwargs)
        for name in values:
            _refuse_private(name)
        super().__init__(values)

    def __setitem__(self, name: str, value: Any) -> None:
        _refuse_private(name)
        super().__setitem__(name, value)


class CompiledTemplate:
    """One compiled template."""

    def __init__(self, template: jinja2.Template) -> None:
        self._template = template

    def render(self, **variables: Any) -> str:
        """The rendered text; RequestError when the template refuses its input or fails on it."""
        try:
            return self._template.render(**variables)
        except jinja2.TemplateError as error:
            raise RequestError(f"the chat template refuses the conversation: {error}") from error
        except Exception as error:  # a template can fail in any way that Python can
            raise RequestError(f"the chat template fails on the conversation: {error!r}") from error


@lru_cache(maxsize=16)
def compile_template(source: str) -> CompiledTemplate:
    """Compile ``source``; ArtifactError with the line when it is not valid Jinja."""
    try:
        return CompiledTemplate(_environment().from_string(source))
    except jinja2.TemplateSyntaxError as error:
        raise ArtifactError(f"the chat template is not valid Jinja: line {error.lineno}: {error.message}") from error


def plain_data(value: Any) -> Any:
    """``value`` rebuilt from plain JSON types, so that a template meets no object with methods of its own."""
    if isinstance(value, Mapping):
        return {plain_data(key): plain_data(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain_data(item) for item in value]
    if value is None or isinstance(value, bool):
        return value
    for kind in (str, int, float):
        if isinstance(value, kind):
            return value if type(value) is kind else kind(value)
    raise RequestError(f"messages: expected text, numbers, lists and objects, found {type(value).__name__}")


def _environment() -> jinja2.sandbox.ImmutableSandboxedEnvironment:
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    helpers: dict[str, Callable[..., Any]] = {
        "raise_exception": _raise_exception,
        "strftime_now": _strftime_now,
        "dict": _Dict(),
        "namespace": _Namespace,
    }
    environment.globals.update(helpers)
    return environment


def _refuse_private(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.sandbox.SecurityError(f"namespace: {name!r} starts with an underscore")


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)
