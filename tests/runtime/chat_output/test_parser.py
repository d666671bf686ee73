"""Answers of every format: what they consist of does not depend on how their text arrives."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from keyword import iskeyword
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridge.runtime.chat_output import (
    ChatFormat,
    ChatOutputParser,
    Content,
    Event,
    Reasoning,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
    chat_format,
)
from hybridge.runtime.chat_output.format import GRANITE, HERMES, LFM2, NEMOTRON, QWEN3_XML, ToolFormat

SCHEMAS = {
    "weather": {
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "where": {"anyOf": [{"type": "object"}, {"type": "null"}]},
            "code": {"type": ["string", "number"]},
            "exact": {"enum": [True, False]},
            "place": {"$ref": "#/$defs/Place"},
            "self": {"anyOf": [{"$ref": "#/$defs/Self"}]},
        },
        "$defs": {
            "Place": {"allOf": [{"type": "object"}]},
            "Self": {"oneOf": [{"$ref": "#/$defs/Self"}, {"const": 7}]},
        },
    }
}
TOOLS = (HERMES, QWEN3_XML, NEMOTRON, GRANITE, LFM2)


def parsed(chat: ChatFormat, pieces: list[str], prompt: str = "") -> list[Event]:
    """All events, with neighbouring parts of one text joined."""
    parser = ChatOutputParser(chat, SCHEMAS, prompt)
    events = [event for piece in pieces for event in parser.push(piece)] + parser.finish()
    joined: list[Event] = []
    for event in events:
        last = joined[-1] if joined else None
        if type(event) is type(last) and isinstance(event, Content | Reasoning | ToolCallArguments):
            joined[-1] = replace(last, text=last.text + event.text)
        else:
            joined.append(event)
    return joined


def summary(events: list[Event]) -> list[Any]:
    """Events as strings (content), tuples (reasoning: one part; calls: name and arguments)."""
    found: list[Any] = []
    for event in events:
        match event:
            case Content(text):
                found.append(text)
            case Reasoning(text):
                found.append((text,))
            case ToolCallStart(_, name):
                found.append([name, ""])
            case ToolCallArguments(_, text):
                found[-1][1] += text
            case ToolCallEnd(_, complete):
                name, text = found[-1]
                found[-1] = (name, json.loads(text)) if complete else (name, text, "incomplete")
    return found


def one_by_one(text: str) -> list[str]:
    return list(text)


CALL = ("weather", {"city": "Bern", "days": 2})
CALL_JSON = '{"name": "weather", "arguments": {"city": "Bern", "days": 2}}'
CALL_XML = (
    "<tool_call>\n<function=weather>\n<parameter=city>\nBern\n</parameter>\n<parameter=days>\n2\n</parameter>\n"
    "</function>\n</tool_call>"
)
OTHER: tuple[str, dict[str, object]] = ("stop", {})


@pytest.mark.parametrize(
    ("chat", "text", "expected"),
    [
        (ChatFormat(), "a <think>b</think>\n<tool_call>", ["a <think>b</think>\n<tool_call>"]),
        (ChatFormat(reasons=True), "<think>\nwhy\n\nso\n</think>\n\nyes\n", [("why\n\nso",), "yes\n"]),
        (ChatFormat(reasons=True), "<think>\nwhy\n", [("why\n",)]),
        (ChatFormat(reasons=True), "no\n</think>", ["no\n</think>"]),
        (ChatFormat(HERMES), f"I ask.\n<tool_call>\n{CALL_JSON}\n</tool_call>\n", ["I ask.", CALL]),
        (
            ChatFormat(HERMES),
            f'<tool_call>{CALL_JSON}</tool_call>\n<tool_call>{{"name":"stop"}}</tool_call>then',
            [CALL, OTHER, "then"],
        ),
        (
            ChatFormat(HERMES),
            '<tool_call>{"arguments": {"a": "}"}, "id": 7, "name": "f"}</tool_call>',
            [("f", {"a": "}"})],
        ),
        (ChatFormat(HERMES), '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}', [("f", {"a": 1})]),
        (ChatFormat(HERMES), '<tool_call>{"name": "f", "arguments": null}</tool_call>', [("f", {})]),
        (
            ChatFormat(HERMES),
            '<tool_call>{"name": "f", "arguments": {"a": "</tool_call>\\"',
            [("f", '{"a": "</tool_call>\\"', "incomplete")],
        ),
        (ChatFormat(HERMES), "<tool_call>not json</tool_call>", ["<tool_call>not json</tool_call>"]),
        (ChatFormat(HERMES), '<tool_call>{"id": 1}</tool_call>', ['<tool_call>{"id": 1}</tool_call>']),
        (ChatFormat(QWEN3_XML, True), f"<think>\n\n</think>\n\n{CALL_XML}\n{CALL_XML}", [CALL, CALL]),
        (
            ChatFormat(QWEN3_XML),
            '<tool_call><function=weather><parameter=city>\n\na"\n\\b\n\n</parameter><parameter=where>\nnull\n</parameter>'
            "<parameter=code>\n7x\n</parameter><parameter=exact>true</parameter></function></tool_call>",
            [("weather", {"city": '\na"\n\\b\n', "where": None, "code": "7x", "exact": True})],
        ),
        (
            ChatFormat(QWEN3_XML),
            '<tool_call><function=weather><parameter=place>{"a":1}</parameter><parameter=self>7</parameter></function>',
            [("weather", {"place": {"a": 1}, "self": 7})],
        ),
        (
            ChatFormat(QWEN3_XML),
            "<tool_call><function=unknown><parameter=a>1</parameter></function></tool_call>",
            [("unknown", {"a": "1"})],
        ),
        (ChatFormat(QWEN3_XML), "<tool_call>\n<function=stop>\n</function>\n</tool_call>", [OTHER]),
        (ChatFormat(QWEN3_XML), "<tool_call>\n<function=f>\n<parameter=a>\nb", [("f", '{"a":"b"', "incomplete")]),
        (
            ChatFormat(NEMOTRON),
            f'<TOOLCALL>[{CALL_JSON}, {{"name": "stop", "arguments": {{}}}}]</TOOLCALL>',
            [CALL, OTHER],
        ),
        (ChatFormat(GRANITE), f"<|tool_call|>[{CALL_JSON}]", [CALL]),
        (
            ChatFormat(LFM2),
            '<|tool_call_start|>[weather(city="Bern", days=2), stop()]<|tool_call_end|>Asking.',
            [CALL, OTHER, "Asking."],
        ),
        (
            ChatFormat(LFM2),
            """<|tool_call_start|>[f(a='it\\'s )', b=[1, -2.5, {"c": null}], d=True)]<|tool_call_end|>""",
            [("f", {"a": "it's )", "b": [1, -2.5, {"c": None}], "d": True})],
        ),
        (
            ChatFormat(LFM2),
            """<|tool_call_start|>[look-up( from = "a=b, c", max-n=(1, 2), ), x.y()]<|tool_call_end|>""",
            [("look-up", {"from": "a=b, c", "max-n": [1, 2]}), ("x.y", {})],
        ),
        *(
            (ChatFormat(LFM2), text, [text])
            for text in (
                f"<|tool_call_start|>[{call}]" for call in ("f(1)", "f(a=1, a=2)", "f(**{})", "f(a)(b)", "1(a=1)")
            )
        ),
        (ChatFormat(LFM2), f"<|tool_call_start|>[{CALL_JSON}]<|tool_call_end|>", [CALL]),
        (
            ChatFormat(LFM2),
            "<|tool_call_start|>[f(a=g())]<|tool_call_end|>",
            ["<|tool_call_start|>[f(a=g())]<|tool_call_end|>"],
        ),
        (
            ChatFormat(harmony=True),
            "<|channel|>analysis<|message|>hm\n<|end|><|start|>assistant<|channel|>commentary to=functions.weather "
            '<|constrain|>json<|message|>{"city": "Bern", "days": 2}<|call|>',
            [("hm\n",), CALL],
        ),
        (
            ChatFormat(harmony=True),
            "<|channel|>commentary<|message|>First.<|end|><|start|>assistant<|channel|>final<|message|>Yes.",
            ["First.\n\nYes."],
        ),
        (ChatFormat(harmony=True), "plain", ["plain"]),
        # Python does not join pairs of surrogates, and half of one is no text.
        (
            ChatFormat(LFM2),
            r'<|tool_call_start|>[f(a="\ud83d\ude00 \ud83d")]<|tool_call_end|>',
            [("f", {"a": "\N{GRINNING FACE} \N{REPLACEMENT CHARACTER}"})],
        ),
    ],
)
def test_the_parts_of_an_answer(chat: ChatFormat, text: str, expected: list[object]) -> None:
    found = parsed(chat, [text])
    assert [each for each in summary(found) if each != ""] == expected
    assert parsed(chat, one_by_one(text)) == found


def test_a_prompt_that_opens_the_reasoning() -> None:
    parser = ChatOutputParser(ChatFormat(reasons=True), {}, "user: <think> is a tag\nassistant: <think>\n")
    assert parser.in_reasoning
    assert parser.push("why</think>yes") == [Reasoning("why"), Content("yes")] and not parser.in_reasoning
    assert not ChatOutputParser(ChatFormat(reasons=True), {}, "<think>\n\n</think>\n\n").in_reasoning


def test_text_and_arguments_arrive_early() -> None:
    """A client sees what is certain at once, not at the end of its part."""
    parser = ChatOutputParser(ChatFormat(HERMES, True), SCHEMAS)
    assert parser.push("Hello <") == [Content("Hello ")]
    assert parser.push("b> <tool") == [Content("<b> ")]
    assert parser.push('_call>\n{"name": "f", "arguments": {"a": [1,') == [
        ToolCallStart(0, "f"),
        ToolCallArguments(0, '{"a": [1,'),
    ]
    parser = ChatOutputParser(ChatFormat(QWEN3_XML), SCHEMAS)
    parser.push("<tool_call><function=weather><parameter=city>\n")
    assert parser.push("Be") == [ToolCallArguments(0, "Be")]


_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-99, 99)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
_NAMES = st.from_regex(r"[a-z][a-z_]{0,8}", fullmatch=True).filter(lambda name: not iskeyword(name))
_CALLS = st.lists(st.tuples(_NAMES, st.dictionaries(_NAMES, _JSON, max_size=3)), min_size=1, max_size=3)


def rendered(tools: ToolFormat, calls: list[tuple[str, dict[str, object]]]) -> str:
    """The calls as a chat template would write them."""
    objects = [json.dumps({"name": name, "arguments": arguments}) for name, arguments in calls]
    if tools is HERMES:
        return "\n".join(f"<tool_call>\n{each}\n</tool_call>" for each in objects)
    if tools is LFM2:
        written = [f"{name}({', '.join(f'{key}={value!r}' for key, value in each.items())})" for name, each in calls]
        return f"{tools.begin}[{', '.join(written)}]{tools.end}"
    return f"{tools.begin}[{', '.join(objects)}]{tools.end}"


@given(st.sampled_from([each for each in TOOLS if each is not QWEN3_XML]), _CALLS, st.lists(st.integers(0, 400)))
def test_calls_survive_any_cut(tools: ToolFormat, calls: list[tuple[str, dict[str, object]]], cuts: list[int]) -> None:
    text = rendered(tools, calls)
    places = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    pieces = [text[begin:end] for begin, end in pairwise(places)]
    assert summary(parsed(ChatFormat(tools, True), pieces)) == calls


_TAGS = (
    *("<think>", "</think>", "<tool_call>", "</tool_call>", "<TOOLCALL>", "<|tool_call|>"),
    *("<|tool_call_start|>", "<|tool_call_end|>", "<function=f>", "<parameter=a>", "</parameter>", "</function>"),
    *("<|channel|>", "<|message|>", "<|end|>", "<|start|>", '{"name": "f", "arguments": ', "f(a="),
    *'{}[](),"\\\n x<:',
)


@pytest.mark.fuzz
@given(st.sampled_from([None, *TOOLS]), st.booleans(), st.booleans(), st.lists(st.sampled_from(_TAGS), max_size=14))
def test_any_text_is_parsed_alike_whole_and_in_pieces(
    tools: ToolFormat | None, reasons: bool, harmony: bool, parts: list[str]
) -> None:
    chat, text = ChatFormat(tools, reasons, harmony), "".join(parts)
    whole = parsed(chat, [text])
    assert parsed(chat, parts) == whole == parsed(chat, one_by_one(text))
    starts = [event.index for event in whole if isinstance(event, ToolCallStart)]
    ends = [event.index for event in whole if isinstance(event, ToolCallEnd)]
    assert starts == ends == list(range(len(starts)))


@pytest.mark.parametrize(
    ("template", "tokens", "expected"),
    [
        ("{{ messages }}", [], ChatFormat()),
        ("{{ tools }} <tool_call>{'name'} <think>", [], ChatFormat(HERMES, True)),
        ("<tool_call> in a template that shows no functions", [], ChatFormat()),
        ("{{ tools }} <tool_call>\n<function=example>", [], ChatFormat(QWEN3_XML)),
        ("{{ tools }} <TOOLCALL>[", [], ChatFormat(NEMOTRON)),
        ("{{ tools }} <|tool_call|>", [], ChatFormat(GRANITE)),
        ("List of tools: {{ tools }}", ["<|tool_call_start|>"], ChatFormat(LFM2)),
        ("{{ tools }}<|start|>system<|message|> <|channel|>analysis", [], ChatFormat(harmony=True)),
    ],
)
def test_the_format_is_found_in_the_template(template: str, tokens: list[str], expected: ChatFormat) -> None:
    assert chat_format(template, tokens) == expected
