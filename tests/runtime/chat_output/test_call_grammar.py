"""Grammars of forced tool calls: they accept what the parser reads, and no other function, parameter or type."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from hybridge.runtime.chat_output import ChatFormat
from hybridge.runtime.chat_output.call_grammar import CallGrammar, Function
from hybridge.runtime.chat_output.format import GRANITE, HERMES, LFM2, NEMOTRON, QWEN3_XML, ToolFormat
from tests.runtime.chat_output.test_parser import parsed, summary

llguidance = pytest.importorskip("llguidance", reason="needs llguidance: pip install '.[serve]'")
TOKENIZER = Path(__file__).parents[3] / "examples/checkpoints/tiny-nemotron-h/tokenizer.json"
WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "unit": {"enum": ["C", "F"]},
        "where": {"type": "object", "properties": {"sea": {"type": "boolean"}}, "additionalProperties": False},
    },
    "required": ["days"],
}
OPTIONAL = {"type": "object", "properties": {key: {"type": "integer"} for key in "abc"}}
FUNCTIONS = (Function("weather", WEATHER), Function("stop", {}), Function("count", OPTIONAL))
WHOLE = ("weather", {"days": 2, "city": 'a "b"', "unit": "C", "where": {"sea": True}})
STOP: tuple[str, dict[str, object]] = ("stop", {})
COUNT = ("count", {"b": 1, "c": 2})
XML = (
    '<tool_call>\n<function=weather>\n<parameter=city>\na "b"\n</parameter>\n<parameter=days>\n2\n</parameter>\n'
    '<parameter=unit>\nC\n</parameter>\n<parameter=where>\n{"sea":true}\n</parameter>\n</function>\n</tool_call>'
)
OBJECTS = (
    '{"name": "weather", "arguments": {"days":2,"city":"a \\"b\\"","unit":"C","where":{"sea":true}}}',
    '{"name": "stop", "arguments": {}}',
)
# Format, text, calls in it. The parameters of JSON objects come in the schema's order.
CASES: list[tuple[ToolFormat | None, str, list[tuple[str, dict[str, object]]]]] = [
    (QWEN3_XML, XML, [WHOLE]),
    (HERMES, "\n".join(f"<tool_call>\n{each}\n</tool_call>" for each in reversed(OBJECTS)), [STOP, WHOLE]),
    (NEMOTRON, f"<TOOLCALL>[{OBJECTS[1]}, {OBJECTS[0]}]</TOOLCALL>", [STOP, WHOLE]),
    (GRANITE, f"<|tool_call|>[{OBJECTS[0]}]", [WHOLE]),
    (
        LFM2,
        '<|tool_call_start|>[weather(days=2, city="a \\"b\\"", unit="C", where={"sea":true}), count(b=1, c=2), stop()]'
        "<|tool_call_end|>",
        [WHOLE, COUNT, STOP],
    ),
    (None, '<|channel|>commentary to=functions.count <|constrain|>json<|message|>{"b":1,"c":2}', [COUNT]),
]


@lru_cache
def tokenizer() -> Any:
    return llguidance.LLTokenizer(str(TOKENIZER))


def accepts(grammar: str, text: str) -> bool:
    """Whether the whole text is an answer."""
    matcher = llguidance.LLMatcher(tokenizer(), llguidance.LLMatcher.grammar_from_lark(grammar))
    assert not matcher.is_error(), matcher.get_error()
    tokens = tokenizer().tokenize_str(text)
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


@pytest.mark.parametrize("thinks", [False, True])
@pytest.mark.parametrize(
    ("tools", "text", "calls"), CASES, ids=[each[0].name if each[0] else "harmony" for each in CASES]
)
def test_what_a_grammar_accepts(
    tools: ToolFormat | None, text: str, calls: list[tuple[str, dict[str, object]]], thinks: bool
) -> None:
    chat = ChatFormat(tools, reasons=thinks, harmony=tools is None)
    text = text.replace('{"days":2,"city":"a \\"b\\"",', '{"city":"a \\"b\\"","days":2,')
    begin = "so\n<be> it\n</think>\n\n" if thinks and tools else ""
    grammar = CallGrammar(chat, in_reasoning=bool(begin)).lark(FUNCTIONS, parallel=True)
    assert accepts(grammar, begin + text)
    assert summary(parsed(chat, [begin + text], "<think>"))[1 if begin else 0 :] == calls
    for wrong in ("weather", "stop"):
        assert wrong not in text or not accepts(grammar, begin + text.replace(wrong, "x"))
    assert "days" not in text or not accepts(grammar, begin + text.replace("days", "day"))
    assert not accepts(grammar, begin + "No." + text) and not accepts(grammar, begin)
    single = CallGrammar(chat, in_reasoning=bool(begin)).lark(FUNCTIONS, parallel=False)
    assert accepts(single, begin + text) == (len(calls) == 1)


def test_special_tokens_are_named() -> None:
    """A tag that is one token of the vocabulary cannot be spelled with others."""
    grammar = CallGrammar(ChatFormat(HERMES, True), ("<tool_call>", "</think>"), True).lark(FUNCTIONS[1:2], False)
    assert 'start: thinking <tool_call> "\\n"' in grammar and '"</tool_call>"' in grammar
    assert "thinking: /(?s:.*)/ </think>" in grammar


def test_many_optional_parameters_make_a_small_grammar() -> None:
    many = {"type": "object", "properties": {f"p{index}": {"type": "integer"} for index in range(2000)}}
    for schema in (many, {**many, "required": ["p7"]}):
        grammar = CallGrammar(ChatFormat(LFM2)).lark([Function("f", schema)], parallel=False)
        assert len(grammar) < 500_000
