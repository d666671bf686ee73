"""Rules of llguidance's Lark grammars for one call of a function, without the tags around it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hybridge.artifact.errors import RequestError
from hybridge.runtime.chat_output.parameter_schemas import Parameter, options_of, parameters_of, resolved
from hybridge.runtime.chat_output.schemas import is_string, parameter_types

_EMPTY_OBJECT: Mapping[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
# Schemas that have their properties elsewhere.
_COMBINED = frozenset({"$ref", "anyOf", "oneOf", "allOf"})
# Keys that each format can write, as the parsers read them.
_XML_KEY, _PYTHON_KEY = re.compile(r"[^\s>]([^>\n]*[^\s>])?"), re.compile(r"[^\s=(),\"'*]+")
_VALUE_END = "\n</parameter>\n"


@dataclass(frozen=True)
class Function:
    """A tool; ``parameters`` is the JSON schema of its arguments, which calls follow only if ``strict``."""

    name: str
    parameters: Mapping[str, Any]
    strict: bool = True

    @property
    def arguments(self) -> Mapping[str, Any]:
        """The schema that calls have to follow."""
        if not self.strict:
            return {"type": "object", **options_of(self.parameters)}
        return self.parameters if _COMBINED & self.parameters.keys() else {**_EMPTY_OBJECT, **self.parameters}


def json_call(rule: str, function: Function) -> list[str]:
    """{"name": ..., "arguments": {...}}"""
    head = json.dumps(f'{{"name": {json.dumps(function.name)}, "arguments": ')
    return [f'{rule}: {head} {json_arguments(function)} "}}"']


def json_arguments(function: Function) -> str:
    """The arguments as a JSON object."""
    return f"%json {json.dumps(function.arguments)}"


def xml_call(rule: str, function: Function) -> list[str]:
    """<function=NAME> with a <parameter=KEY> for each argument, in the schema's order."""
    head = json.dumps(f"<function={function.name}>\n")
    if not function.strict:
        key, text = f"{rule}_key", f"{rule}_text"
        return [
            f'{rule}: {head} ({key} {text})* "</function>"',
            f'{key}: "<parameter=" /[^>\\n]+/ ">\\n"',
            f"{text}[suffix={json.dumps(_VALUE_END)}]: /(?s:.*)/",
        ]
    rules, parts = [], []
    for index, parameter in enumerate(_parameters(function, _XML_KEY)):
        name = f"{rule}_{index}"
        rules += _xml_parameter(name, parameter, function.arguments)
        parts.append(name if parameter.required else f"{name}?")
    return [f'{rule}: {head} {" ".join(parts)} "</function>"', *rules]


def _parameters(function: Function, keys: re.Pattern[str]) -> list[Parameter]:
    """The parameters; RequestError for one whose name the format cannot write."""
    found = parameters_of(function.arguments)
    for each in found:
        if not keys.fullmatch(each.key):
            raise RequestError(
                f"tools: expected names of parameters that the model's format can write, found {each.key!r}: rename it"
            )
    return found


def _xml_parameter(rule: str, parameter: Parameter, function: Mapping[str, Any]) -> list[str]:
    begin, end = json.dumps(f"<parameter={parameter.key}>\n"), json.dumps(_VALUE_END)
    found = resolved(parameter.schema, function)
    schema = found if isinstance(found, Mapping) else {}
    texts = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(texts, list) and texts and all(isinstance(each, str) for each in texts):
        return [f"{rule}: {begin} ({' | '.join(map(json.dumps, texts))}) {end}"]
    if texts is not None or not is_string(parameter_types({"": function}, "", parameter.key)):
        return [f"{rule}: {begin} %json {json.dumps(parameter.alone)} {end}"]
    regex = _string_regex(schema)
    if not regex:
        return [f"{rule}: {begin} {rule}_text", f"{rule}_text[suffix={end}]: /(?s:.*)/"]
    text = f"{rule}_text".upper()
    return [
        f"{rule}: {begin} {text}_END",
        f"{text}_END: {text} {end}",
        f"{text}: {regex} & ~/(?s:.*)<\\/parameter>(?s:.*)/",
    ]


def _string_regex(schema: Mapping[str, Any]) -> str:
    """The strings of a schema with a pattern or limits of length; empty for any string."""
    parts, pattern = [], schema.get("pattern")
    if isinstance(pattern, str):
        before = "" if pattern.startswith("^") else "(?s:.*)"
        after = "" if re.search(r"(?<!\\)(\\\\)*\$$", pattern) else "(?s:.*)"
        inner = pattern[not before : None if after else -1]
        parts.append(f"/{before}(?:{_slashes_escaped(inner)}){after}/")
    if "minLength" in schema or "maxLength" in schema:
        most = _length(schema, "maxLength") if "maxLength" in schema else ""
        parts.append(f"/(?s:.{{{_length(schema, 'minLength')},{most}}})/")
    return " & ".join(parts)


def _length(schema: Mapping[str, Any], name: str) -> int:
    found = schema.get(name, 0)
    if not isinstance(found, int) or found < 0:
        raise RequestError(f"tools: {name}: expected an integer of at least 0, found {found!r}: correct the schema")
    return int(found)


def _slashes_escaped(regex: str) -> str:
    return re.sub(r"(?s)\\.|/|\n", lambda found: {"/": "\\/", "\n": "\\n"}.get(found[0], found[0]), regex)


def python_call(rule: str, function: Function) -> list[str]:
    """NAME(KEY=VALUE, ...): the required arguments first, then any others, in the schema's order."""
    head = json.dumps(f"{function.name}(")
    if not function.strict:
        value, schema = f"{rule}_value", json.dumps(options_of(function.parameters))
        return [
            f'{rule}: {head} ({value} (", " {value})*)? ")"',
            f'{value}: /[A-Za-z_][A-Za-z0-9_]*/ "=" %json {schema}',
        ]
    known = {f"{rule}_{index}": each for index, each in enumerate(_parameters(function, _PYTHON_KEY))}
    rules = [f"{name}: {json.dumps(f'{each.key}=')} %json {json.dumps(each.alone)}" for name, each in known.items()]
    required = [name for name, each in known.items() if each.required]
    arguments, more = _in_order(rule, required, [name for name in known if name not in required])
    return [f'{rule}: {head} {arguments} ")"', *rules, *more]


def _in_order(rule: str, required: Sequence[str], others: Sequence[str]) -> tuple[str, list[str]]:
    """All of ``required`` and any of ``others``, and the rules of this. Rule "_rest_i": of ``others`` from i on."""
    rests = [f"{rule}_rest_{index}" for index in range(len(others))]
    afters = [*rests[1:], ""][: len(others)]
    rules = [f'{rest}: (", " {name})? {after}' for rest, name, after in zip(rests, others, afters, strict=True)]
    arguments = ' ", " '.join(required)
    if required and others:
        return f"{arguments} {rests[0]}", rules
    if others:
        first = [f"{name} {after}" for name, after in zip(others, afters, strict=True)]
        return f"({' | '.join(first)})?", rules
    return arguments, rules
