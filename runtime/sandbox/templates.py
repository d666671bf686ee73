"""Run a checkpoint's Jinja template as untrusted code, in the process of ``hybridge.runtime.sandbox.worker``.

The conventions are those of transformers: trimmed blocks, loop controls, a JSON filter that escapes no HTML,
raise_exception, strftime_now, and a generation block that is printed as if it were not there.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from functools import lru_cache
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox
import jinja2.utils

from hybridge.artifact.errors import ArtifactError, RequestError

# Characters of a template's own words that an error sentence shows.
_LONGEST_REASON = 500


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


def render(source: str, variables: dict[str, Any]) -> bytes:
    """The template ``source`` rendered with ``variables``, as UTF-8 that may contain lone surrogates."""
    template = _compiled(source)
    try:
        return template.render(**variables).encode("utf-8", "surrogatepass")
    except jinja2.TemplateError as error:
        raise RequestError(f"the chat template refuses the conversation: {_short(str(error))}") from error
    except MemoryError:
        raise
    except Exception as error:  # a template can fail in any way that Python can
        raise RequestError(f"the chat template fails on the conversation: {_short(repr(error))}") from error


def render_with_ends(source: str, variables: dict[str, Any]) -> bytes:
    """``render``, after a line with the lengths of the prefixes that all messages, and all but the last, render to.

    A beginning is without a prompt for the next message. It is left out where the template refuses it, or begins the
    conversation otherwise.
    """
    text, messages = render(source, variables), variables["messages"]
    ends = []
    for first in (messages, messages[:-1]):
        try:
            before = render(source, {**variables, "messages": first, "add_generation_prompt": False}) if first else b""
        except RequestError:
            continue
        if before and before != text and text.startswith(before):
            ends.append(len(before.decode("utf-8", "surrogatepass")))
    return " ".join(map(str, ends)).encode() + b"\n" + text


@lru_cache(maxsize=16)
def _compiled(source: str) -> jinja2.Template:
    try:
        return _environment().from_string(source)
    except jinja2.TemplateSyntaxError as error:
        where = f"line {error.lineno}: {_short(str(error.message))}"
    except MemoryError:
        raise
    except Exception as error:  # Jinja passes on what Python's compiler says of the code that it made
        where = _short(repr(error))
    raise ArtifactError(f"the chat template is not valid Jinja: {where}")


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST_REASON else f"{text[:_LONGEST_REASON]}..."


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
