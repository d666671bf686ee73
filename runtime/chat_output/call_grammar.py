"""Lark grammars (llguidance's dialect) of answers with tool calls whose arguments follow the tools' schemas.

https://github.com/guidance-ai/llguidance/blob/main/docs/syntax.md
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from hybridge.runtime.chat_output.call_rules import Function, json_arguments, json_call, python_call, xml_call
from hybridge.runtime.chat_output.format import HERMES, LFM2, QWEN3_XML, ChatFormat, ToolFormat
from hybridge.runtime.chat_output.harmony_answer import ENDS, MESSAGE
from hybridge.runtime.chat_output.tagged_answer import THINK, THINK_END

# Text of ordinary tokens.
_TEXT = "TEXT: /(?s:.+)/"


@dataclass(frozen=True)
class CallGrammar:
    """special: ids of the tokenizer's special tokens, which a grammar names instead of spelling them.

    stops: tokens that end the answer. in_reasoning: it begins within reasoning, which may have any length.
    """

    chat: ChatFormat
    special: Mapping[str, int] = field(default_factory=dict)
    stops: Collection[int] = ()
    in_reasoning: bool = False

    def calls(self, functions: Sequence[Function], parallel: bool) -> str:
        """The grammar of one call of one of ``functions``, or of several with ``parallel``; in harmony always one."""
        if self.chat.harmony:
            start, rules = "any_call", self._message_calls(functions)
        else:
            tools = self._tools
            start, rules = f"{self._text(tools.begin)} {self._after_begin(parallel)}", self._tagged_calls(functions)
            if tools in (HERMES, QWEN3_XML) and parallel:
                start = f'{start} ("\\n" {start})*'
            if self.in_reasoning:
                start = f'thought "\\n\\n" {start}'
                rules += [*self._thought(), _TEXT]
        return "\n".join([f"start: {start}", *rules])

    def calls_in_text(self, functions: Sequence[Function], parallel: bool) -> str:
        """The grammar of any text in which each call is one of ``functions``."""
        if self.chat.harmony:
            return self._calls_in_messages(functions)
        begin, reasons = self._tools.begin, self.chat.reasons
        part, end = f"before_call {self._after_begin(parallel)}", "text"
        rules = [*self._tagged_calls(functions), *self._until("before_call", begin)]
        if reasons:
            part, end = f"{part} | before_thought thought", "(text | before_thought open_thought)"
            rules += [*self._until("before_thought", THINK), *self._thought()]
        start = f"({part})* {end}"
        if self.in_reasoning:
            start = f"thought {start} | open_thought"
        others = self._others(begin, *([THINK, THINK_END] if reasons else []))
        return "\n".join([f"start: {start}", *rules, f"text: {_any_text(others)}", _TEXT])

    @property
    def _tools(self) -> ToolFormat:
        assert self.chat.tools is not None, "the format has no tool calls"
        return self.chat.tools

    def _after_begin(self, parallel: bool) -> str:
        """What follows the tag that begins calls."""
        end = self._text(self._tools.end)
        if self._tools in (HERMES, QWEN3_XML):
            return f'"\\n" any_call "\\n" {end}'
        calls = 'any_call (", " any_call)*' if parallel else "any_call"
        return f'"[" {calls} "]" {end}'

    def _tagged_calls(self, functions: Sequence[Function]) -> list[str]:
        """The rule of any call, without the tags around it."""
        write = {QWEN3_XML: xml_call, LFM2: python_call}.get(self._tools, json_call)
        rules = [line for index, function in enumerate(functions) for line in write(f"call_{index}", function)]
        return [_any_call(functions), *rules]

    def _message_calls(self, functions: Sequence[Function]) -> list[str]:
        """Harmony's rule of any call as a message, without its end."""
        channel, constrain, message = map(self._text, ("<|channel|>", "<|constrain|>", MESSAGE))
        return [
            _any_call(functions),
            *(
                f"call_{index}: {channel} {json.dumps(f'commentary to=functions.{function.name} ')} {constrain} "
                f'"json" {message} {json_arguments(function)}'
                for index, function in enumerate(functions)
            ),
        ]

    def _calls_in_messages(self, functions: Sequence[Function]) -> str:
        """Harmony's messages, where the body of one to a function follows its schema."""
        names = _regex_of([function.name for function in functions])
        end, others = " | ".join(map(self._text, ENDS)), self._others(MESSAGE, *ENDS)
        header = "(before_message | before_name OTHER_NAME? after_name)"
        return "\n".join(
            [
                f"start: (before_name any_call ({end}) | {header} before_end)* (before_name any_call | {header}? text)",
                _any_call(functions),
                *(
                    f"call_{index}: {json.dumps(function.name)} after_name {json_arguments(function)}"
                    for index, function in enumerate(functions)
                ),
                rf"OTHER_NAME: /[^\s<]+/ & ~/{names}/",
                *self._until("before_name", "to=functions."),
                *self._until("before_message", MESSAGE),
                *self._until("before_end", *ENDS),
                *self._after_name(others),
                f"text: {_any_text(others)}",
                _TEXT,
            ]
        )

    def _until(self, rule: str, *markers: str, text: str = "text") -> list[str]:
        """The rules of any text through the first of ``markers``."""
        spelled = _regex_of([marker for marker in markers if marker not in self.special])
        ends = [*(marker for marker in markers if marker in self.special), *([f"{rule}_text"] if spelled else [])]
        rules = [f"{rule}: {text} ({' | '.join(ends)})"]
        return [*rules, f"{rule}_text[lazy]: /(?s:.*){spelled}/"] if spelled else rules

    def _thought(self) -> list[str]:
        """The rules of the rest of a thought, through its end."""
        open_thought = f"open_thought: {_any_text(self._others(THINK_END))}"
        return [open_thought, *self._until("thought", THINK_END, text="open_thought")]

    def _after_name(self, others: str) -> list[str]:
        """Harmony's rules of the rest of a header whose last text is the name of a function."""
        if MESSAGE not in self.special:
            return [rf"after_name[lazy]: /([\s<](?s:.*))?{_regex_of([MESSAGE])}/"]
        more = f"({others} TEXT?)*" if others else ""
        return [f"after_name: SPACED? {more} {MESSAGE}", r"SPACED: /\s(?s:.*)/"]

    def _others(self, *markers: str) -> str:
        """Any special token but ``markers`` and those that end the answer; empty where there is none."""
        ids = [id for text, id in self.special.items() if text not in markers and id not in self.stops]
        return f"<[{','.join(map(str, ids))}]>" if ids else ""

    def _text(self, tag: str) -> str:
        """A tag in the grammar: by name if it is a special token."""
        if not tag:
            return ""
        return tag if tag in self.special else json.dumps(tag)


def _any_text(others: str) -> str:
    """Any text, with the special tokens ``others``."""
    return f"(TEXT{f' | {others}' if others else ''})*"


def _regex_of(texts: Sequence[str]) -> str:
    """A regex of one of ``texts``, empty where there is none."""
    return f"({'|'.join(map(re.escape, texts))})".replace("/", r"\/") if texts else ""


def _any_call(functions: Sequence[Function]) -> str:
    return f"any_call: {' | '.join(f'call_{index}' for index in range(len(functions)))}"
