"""Grammars of forced tool calls: they accept what the parser reads, and no other function, parameter or type."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from hybridge.artifact.errors import RequestError
from hybridge.runtime.chat_output import ChatFormat
from hybridge.runtime.chat_output.call_grammar import CallGrammar
from hybridge.runtime.chat_output.call_rules import Function
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
def tokenizer(special: tuple[str, ...] = ()) -> Any:
    """The demo model's, with further special tokens, which follow its own."""
    found = Tokenizer.from_file(str(TOKENIZER))
    found.add_special_tokens(list(special))
    return llguidance.LLTokenizer(found.to_str())


def special_ids(special: tuple[str, ...]) -> dict[str, int]:
    texts = (*special, "</s>", "<pad>", "<|end|>")
    return {text: tokenizer(special).tokenize_str(text, parse_special=True)[0] for text in texts}


def accepts(grammar: str, text: str, special: tuple[str, ...] = ()) -> bool:
    """Whether the whole text is an answer."""
    tokens = tokenizer(special).tokenize_str(text, parse_special=True)
    matcher = llguidance.LLMatcher(tokenizer(special), llguidance.LLMatcher.grammar_from_lark(grammar))
    assert not matcher.is_error(), matcher.get_error()
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
    grammar = CallGrammar(chat, in_reasoning=bool(begin)).calls(FUNCTIONS, parallel=True)
    assert accepts(grammar, begin + text)
    assert summary(parsed(chat, [begin + text], "<think>"))[1 if begin else 0 :] == calls
    for wrong in ("weather", "stop"):
        assert wrong not in text or not accepts(grammar, begin + text.replace(wrong, "x"))
    assert "days" not in text or not accepts(grammar, begin + text.replace("days", "day"))
    assert not accepts(grammar, begin + "No." + text) and not accepts(grammar, begin)
    single = CallGrammar(chat, in_reasoning=bool(begin)).calls(FUNCTIONS, parallel=False)
    assert accepts(single, begin + text) == (len(calls) == 1)


def test_special_tokens_are_named() -> None:
    """A tag that is one token of the vocabulary cannot be spelled with others."""
    special = {"<tool_call>": 7, "</think>": 8, "</s>": 2, "<pad>": 0}
    grammar = CallGrammar(ChatFormat(HERMES, True), special, {2}, in_reasoning=True).calls(FUNCTIONS[1:2], False)
    assert 'start: thought "\\n\\n" <tool_call> "\\n"' in grammar and '"</tool_call>"' in grammar
    assert "open_thought: (TEXT | <[7,0]>)*" in grammar


def test_many_optional_parameters_make_a_small_grammar() -> None:
    many = {"type": "object", "properties": {f"p{index}": {"type": "integer"} for index in range(2000)}}
    for schema in (many, {**many, "required": ["p7"]}):
        grammar = CallGrammar(ChatFormat(LFM2)).calls([Function("f", schema)], parallel=False)
        assert len(grammar) < 500_000


HARMONY = ("<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>", "<|call|>")
STRICT = (*FUNCTIONS[:2], Function("loose", WEATHER, strict=False), FUNCTIONS[2])


@pytest.mark.parametrize("is_special", [False, True])
@pytest.mark.parametrize("reasons", [False, True])
@pytest.mark.parametrize(("tools", "text", "calls"), CASES[:5], ids=[each[0].name for each in CASES[:5] if each[0]])
def test_calls_within_text(
    tools: ToolFormat, text: str, calls: list[tuple[str, dict[str, object]]], reasons: bool, is_special: bool
) -> None:
    """Only calls are constrained: not what comes before and after them, nor the reasoning."""
    special = tuple(filter(None, (tools.begin, tools.end))) if is_special else ()
    chat = ChatFormat(tools, reasons)
    text = text.replace('{"days":2,"city":"a \\"b\\"",', '{"city":"a \\"b\\"","days":2,')
    grammar = CallGrammar(chat, special_ids(special), {2}).calls_in_text(STRICT, parallel=True)
    for free in ("", "No.", f"a {tools.begin[:-1]} <pad> b", "é {", "<think>"):
        assert accepts(grammar, free, special)
        assert accepts(grammar, f"{free}\n{text}", special)
    assert accepts(grammar, f"a\n{text}\nb {text} <pad> c", special)
    assert summary(parsed(chat, [f"a\n{text}\nb {text} c"])) == ["a", *calls, "b ", *calls, " c"]
    assert not accepts(grammar, f"a {tools.begin}", special) and not accepts(grammar, f"{text}{tools.begin}x", special)
    for right, wrong in (("days", "day"), ("weather", "x"), ("stop", "halt"), ("count", "x"), ("true", "1")):
        assert right not in text or not accepts(grammar, f"a {text.replace(right, wrong)}", special)
    assert accepts(grammar, text.replace("weather", "loose").replace("days", "day").replace("true", "1"), special)
    if reasons:
        assert accepts(grammar, f"a <think>{tools.begin}x</think>\n{text} b", special)
        assert not accepts(grammar, f"a <think>{tools.begin}x</think>\n{tools.begin}x", special)
        within = CallGrammar(chat, special_ids(special), {2}, in_reasoning=True).calls_in_text(STRICT, parallel=True)
        assert accepts(within, f"a {tools.begin}x", special) and accepts(within, f"a</think>\n{text} b", special)
        assert not accepts(within, f"a</think>\n{tools.begin}x", special)


@pytest.mark.parametrize("special", [(), HARMONY])
def test_calls_in_messages(special: tuple[str, ...]) -> None:
    """In harmony, the body of a message to a function is constrained, wherever the header names it."""
    grammar = CallGrammar(ChatFormat(harmony=True), special_ids(special), {2}).calls_in_text(FUNCTIONS, parallel=True)
    thought = "<|channel|>analysis<|message|>to=functions.count {<|end|><|start|>assistant"
    final = "<|channel|>final<|message|>It is."
    headers = (
        "<|channel|>commentary to=functions.count <|constrain|>json<|message|>",
        " to=functions.count<|channel|>commentary json<|message|>",
        "<|channel|>commentary to=functions.count<|message|>",
    )
    for text in ("", thought, thought + final, final, f"{final}<|end|>", "It is."):
        assert accepts(grammar, text, special)
    for header in headers:
        assert accepts(grammar, thought + header + '{"b":1}', special)
        assert accepts(grammar, f'{thought}{header}{{"b":1}}<|end|><|start|>assistant{final}', special)
        for wrong in ('{"b":1.5}', '{"b":1', '{"x":1}', "", "b"):
            assert not accepts(grammar, thought + header + wrong, special)
        for other in ("counter", "coun", "weath"):
            assert accepts(grammar, thought + header.replace("count", other) + '{"b":1.5} x', special)


REFERRING = {
    "type": "object",
    "properties": {
        "a/~%": {"$ref": "#/$defs/Colour"},
        "tree": {"$ref": "#/$defs/Tree"},
        "again": {"allOf": [{"$ref": "#/properties/tree"}]},
    },
    "$defs": {
        "Colour": {"type": "string", "enum": ["red", "blue"]},
        "Tree": {
            "type": "object",
            "properties": {"colour": {"$ref": "#/$defs/Colour"}, "below": {"$ref": "#/$defs/Tree"}},
            "required": ["colour"],
            "additionalProperties": False,
        },
    },
}


@pytest.mark.parametrize("tools", [HERMES, QWEN3_XML, LFM2])
def test_parameters_that_refer_to_the_schema(tools: ToolFormat) -> None:
    """As in schemas that pydantic writes."""
    grammar = CallGrammar(ChatFormat(tools)).calls([Function("f", REFERRING)], parallel=False)
    tree = '{"colour":"red","below":{"colour":"blue"}}'
    if tools is HERMES:
        text = f'<tool_call>\n{{"name": "f", "arguments": {{"a/~%":"red","tree":{tree},"again":{tree}}}}}\n</tool_call>'
    elif tools is LFM2:
        text = f"<|tool_call_start|>[f(tree={tree}, again={tree})]<|tool_call_end|>"
    else:
        values = {"a/~%": "red", "tree": tree, "again": tree}
        inner = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
        text = f"<tool_call>\n<function=f>\n{inner}</function>\n</tool_call>"
    assert accepts(grammar, text)
    for place in range(text.count("red")):
        parts = text.split("red")
        assert not accepts(grammar, "red".join(parts[: place + 1]) + "tan" + "red".join(parts[place + 1 :]))


def test_a_schema_that_is_a_reference() -> None:
    inner = {
        "properties": {"colour": {"$ref": "#/$defs/Colour"}},
        "required": ["colour"],
        "additionalProperties": False,
    }
    schema = {"$ref": "#/$defs/F", "$defs": {"F": inner, "Colour": {"enum": ["red", "blue"]}}}
    for tools, text in (
        (HERMES, '<tool_call>\n{"name": "f", "arguments": {"colour":"red"}}\n</tool_call>'),
        (LFM2, '<|tool_call_start|>[f(colour="red")]<|tool_call_end|>'),
    ):
        grammar = CallGrammar(ChatFormat(tools)).calls([Function("f", schema)], parallel=False)
        assert accepts(grammar, text) and not accepts(grammar, text.replace("red", "tan"))
        assert not accepts(grammar, text.replace("colour", "color"))


@pytest.mark.parametrize("key", ["a b", "a=b", "a,b", "(", '"', "", "a\nb"])
def test_names_that_python_cannot_write_are_refused(key: str) -> None:
    with pytest.raises(RequestError, match="rename it"):
        CallGrammar(ChatFormat(LFM2)).calls([Function("f", {"properties": {key: {}}})], parallel=False)


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        ({"pattern": "^a/[0-9]+$"}, ["a/1", "a/22"], ["xa/1", "a/", "a/1\n"]),
        ({"pattern": "b|c"}, ["abd", "c"], ["a", ""]),
        ({"pattern": r"\$"}, ["a$b"], ["ab"]),
        ({"minLength": 2, "maxLength": 3}, ["é\n", "abc"], ["a", "abcd", ""]),
        ({"maxLength": 1}, ["", "a"], ["ab"]),
        ({"minLength": 1, "pattern": "a"}, ["a", "ba"], ["b", ""]),
        ({"const": "x y"}, ["x y"], ["x", '"x y"']),
        ({"enum": ["", "a"]}, ["", "a"], ["b"]),
        ({}, ["", "a\nb", "</parameter"], []),
    ],
)
def test_strings_without_quotes_follow_their_schema(schema: dict[str, Any], right: list[str], wrong: list[str]) -> None:
    function = Function("f", {"properties": {"s": {"type": "string", **schema}}})
    grammar = CallGrammar(ChatFormat(QWEN3_XML)).calls([function], parallel=False)
    call = "<tool_call>\n<function=f>\n<parameter=s>\n{}\n</parameter>\n</function>\n</tool_call>"
    for text in right:
        assert accepts(grammar, call.format(text)), text
    for text in wrong:
        assert not accepts(grammar, call.format(text)), text


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": ["s"]},
        {"properties": {"s": {}}, "required": 1},
        {"properties": {"s": {"type": "string", "minLength": "1"}}},
        {"properties": {"s": {"type": "string", "maxLength": -1}}},
        {"properties": {"s": {}}, "required": ["t"]},
        {"properties": {"s": {}}, "required": [["s"]]},
        {"properties": {"a>b": {}}},
        {"properties": {"": {}}},
        {"anyOf": [{"properties": {"s": {}}}]},
        {"$ref": "#/$defs/none"},
    ],
)
def test_wrong_schemas_are_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match=r"tools: .*expected"):
        CallGrammar(ChatFormat(QWEN3_XML)).calls([Function("f", schema)], parallel=False)
