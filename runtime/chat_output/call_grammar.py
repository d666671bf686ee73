"""Lark grammars (llguidance's dialect) of answers that consist of tool calls, for requests that force one.

https://github.com/guidance-ai/llguidance/blob/main/docs/syntax.md
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hybridge.runtime.chat_output.format import HERMES, LFM2, QWEN3_XML, ChatFormat, ToolFormat
from hybridge.runtime.chat_output.schemas import is_string, parameter_types
from hybridge.runtime.chat_output.tagged_answer import THINK_END

_EMPTY_OBJECT: Mapping[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}


@dataclass(frozen=True)
class Function:
    """A tool; ``parameters`` is the JSON schema of its arguments."""

    name: str
    parameters: Mapping[str, Any]


@dataclass(frozen=True)
class CallGrammar:
    """special: the tokenizer's special tokens, which a grammar names instead of spelling them.

    in_reasoning: the answer begins within reasoning, which may have any length.
    """

    chat: ChatFormat
    special: Collection[str] = ()
    in_reasoning: bool = False

    def lark(self, functions: Sequence[Function], parallel: bool) -> str:
        """The grammar of one call of one of ``functions``, or of several with ``parallel``; in harmony always one."""
        named = {f"call_{index}": function for index, function in enumerate(functions)}
        any_call = f"any_call: {' | '.join(named)}"
        rules = [line for name, function in named.items() for line in self._call(name, function)]
        if self.chat.harmony:
            return "\n".join(["start: any_call", any_call, *rules])
        tools = self.chat.tools
        assert tools is not None, "the format has no tool calls"
        thinking = ["thinking"] if self.in_reasoning else []
        return "\n".join(
            [
                " ".join(["start:", *thinking, self._calls(tools, parallel)]),
                any_call,
                *rules,
                *self._reasoning(thinking),
            ]
        )

    def _calls(self, tools: ToolFormat, parallel: bool) -> str:
        begin, end = self._text(tools.begin), self._text(tools.end)
        if tools in (HERMES, QWEN3_XML):
            call = f'{begin} "\\n" any_call "\\n" {end}'
            return f'{call} ("\\n" {call})*' if parallel else call
        calls = 'any_call (", " any_call)*' if parallel else "any_call"
        return f'{begin} "[" {calls} "]" {end}'

    def _reasoning(self, thinking: Sequence[str]) -> list[str]:
        if not thinking:
            return []
        if THINK_END in self.special:
            return [f'thinking: /(?s:.*)/ {THINK_END} "\\n\\n"']
        return ['thinking: any_thought "\\n\\n"', f"any_thought[suffix={json.dumps(THINK_END)}]: /(?s:.*)/"]

    def _call(self, rule: str, function: Function) -> list[str]:
        """The rules of one function's call, without the tags around it."""
        schema = {**_EMPTY_OBJECT, **function.parameters} if function.parameters else _EMPTY_OBJECT
        if self.chat.harmony:
            header = f"commentary to=functions.{function.name} "
            parts = [self._text("<|channel|>"), json.dumps(header), self._text("<|constrain|>"), '"json"']
            return [f"{rule}: {' '.join(parts)} {self._text('<|message|>')} %json {json.dumps(schema)}"]
        if self.chat.tools is QWEN3_XML:
            return self._xml_call(rule, function, schema)
        if self.chat.tools is LFM2:
            return self._python_call(rule, function, schema)
        head = json.dumps(f'{{"name": {json.dumps(function.name)}, "arguments": ')
        return [f'{rule}: {head} %json {json.dumps(schema)} "}}"']

    def _xml_call(self, rule: str, function: Function, schema: Mapping[str, Any]) -> list[str]:
        rules, parts = [], [json.dumps(f"<function={function.name}>\n")]
        for index, (key, value, required) in enumerate(_parameters(schema)):
            name, begin = f"{rule}_{index}", json.dumps(f"<parameter={key}>\n")
            if is_string(parameter_types({function.name: schema}, function.name, key)) and "enum" not in value:
                rules.append(f"{name}: {begin} {name}_text")
                rules.append(f'{name}_text[suffix="\\n</parameter>\\n"]: /(?s:.*)/')
            elif all(isinstance(each, str) for each in value.get("enum", [None])):
                texts = " | ".join(json.dumps(each) for each in value["enum"])
                rules.append(f'{name}: {begin} ({texts}) "\\n</parameter>\\n"')
            else:
                rules.append(f'{name}: {begin} %json {json.dumps(value)} "\\n</parameter>\\n"')
            parts.append(name if required else f"{name}?")
        return [f'{rule}: {" ".join(parts)} "</function>"', *rules]

    def _python_call(self, rule: str, function: Function, schema: Mapping[str, Any]) -> list[str]:
        """Keyword arguments: the required ones first, then any others, in the schema's order."""
        known = {f"{rule}_{index}": each for index, each in enumerate(_parameters(schema))}
        rules = [
            f"{name}: {json.dumps(f'{key}=')} %json {json.dumps(value)}" for name, (key, value, _) in known.items()
        ]
        needed = [name for name, (_, _, required) in known.items() if required]
        others = [name for name in known if name not in needed]
        # Rule "_rest_i": the parameters of ``others`` from i on, each of them optional.
        rests = [f"{rule}_rest_{index}" for index in range(len(others))]
        afters = [*rests[1:], ""][: len(others)]
        rules += [f'{rest}: (", " {name})? {after}' for rest, name, after in zip(rests, others, afters, strict=True)]
        arguments = ' ", " '.join(needed)
        if needed and others:
            arguments = f"{arguments} {rests[0]}"
        elif others:
            first = [f"{name} {after}" for name, after in zip(others, afters, strict=True)]
            arguments = f"({' | '.join(first)})?"
        return [f'{rule}: {json.dumps(f"{function.name}(")} {arguments} ")"', *rules]

    def _text(self, tag: str) -> str:
        """A tag in the grammar: by name if it is a special token."""
        if not tag:
            return ""
        return tag if tag in self.special else json.dumps(tag)


def _parameters(schema: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any], bool]]:
    """Name, schema and whether it is required, of each parameter."""
    properties, required = schema.get("properties") or {}, schema.get("required") or ()
    return [(key, value if isinstance(value, Mapping) else {}, key in required) for key, value in properties.items()]
