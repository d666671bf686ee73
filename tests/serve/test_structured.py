"""Answers that follow a grammar, and calls of tools."""

from __future__ import annotations

import json
import re
import time
from dataclasses import replace
from typing import Any

import pytest

from hybridge.serve.settings import ModelSettings
from tests.serve.running import Running, running

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
USER = [{"role": "user", "content": "Where is the sea?"}]
SCHEMA = {
    "type": "object",
    "properties": {"place": {"enum": ["north", "south"]}, "depth": {"type": "integer", "minimum": 0, "maximum": 9}},
    "required": ["place", "depth"],
    "additionalProperties": False,
}
LARK = 'start: "the " animal (" and " animal)?\nanimal: "cat" | "dog"'
TOOL = {"type": "function", "function": {"name": "look", "parameters": SCHEMA}}


def is_place(text: str) -> bool:
    value = json.loads(text)
    return value["place"] in ("north", "south") and value["depth"] in range(10) and len(value) == 2


@pytest.mark.parametrize(
    ("fields", "check"),
    [
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}}, is_place),
        ({"structured_outputs": {"json": SCHEMA}}, is_place),
        ({"structured_outputs": {"regex": "[0-9]{4}-[0-9]{2}"}}, lambda text: re.fullmatch(r"\d{4}-\d\d", text)),
        ({"structured_outputs": {"choice": ["yes", "no \"\u00e9\n"]}}, ["yes", "no \"\u00e9\n"].__contains__),
        ({"structured_outputs": {"grammar": LARK}}, lambda text: re.fullmatch("the (cat|dog)( and (cat|dog))?", text)),
    ],
    ids=["response_format", "json", "regex", "choice", "lark"],
)  # fmt: skip
def test_sampled_answers_follow_a_grammar(served: Running, fields: dict[str, Any], check: Any) -> None:
    """Several answers of one batch, of a model that would write something else, each in its own state."""
    sampling = {"temperature": 1.5, "n": 3, "seed": 1, "max_tokens": 60}
    body = served.post(CHAT, messages=USER, **sampling, **fields)
    for choice in body["choices"]:
        assert choice["finish_reason"] == "stop" and check(choice["message"]["content"])
    assert all(
        check(choice["text"]) for choice in served.post(COMPLETIONS, prompt="x", **sampling, **fields)["choices"]
    )


def test_json_objects_are_valid_up_to_the_limit_of_tokens(served: Running) -> None:
    body = served.post(CHAT, messages=USER, response_format={"type": "json_object"}, max_tokens=40, temperature=1)
    assert body["choices"][0]["message"]["content"].startswith("{")


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": {"type": "json_schema"}},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "nonsense"}}}},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"$ref": "http://x.invalid/"}}}},
        {"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}},
        {"structured_outputs": {}},
        {"structured_outputs": {"regex": "a", "choice": ["b"]}},
        {"structured_outputs": {"regex": "(a"}},
        {"structured_outputs": {"grammar": "start: missing"}},
        {"structured_outputs": {"grammar": 'start: "a" start'}},
        {"structured_outputs": {"choice": []}},
        {"structured_outputs": {"grammar": 'start: "' + "a" * 200_000 + '"\n' + "b: start start\n" * 20_000}},
        {"structured_outputs": {"regex": "((a{1,1000}){1,1000}){1,1000}"}},
        {"structured_outputs": {"json": {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}}},
    ],
)  # fmt: skip
def test_bad_grammars_are_refused(served: Running, fields: dict[str, Any]) -> None:
    assert served.refusal(CHAT, 400, messages=USER, **fields)["type"] == "invalid_request_error"


CHAIN = "".join(f'r{index}: r{index + 1} r{index + 1} | "a{index}"\n' for index in range(9000))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("grammar", "reason"),
    [
        (f'start: r0\n{CHAIN}r9000: "z"\n', "crashes"),
        ("start: A\nA: " + " & ".join(f"/.*{number}.*/" for number in range(300)), "5 s of processor time"),
    ],
)
def test_a_compiler_that_crashes_or_takes_too_long_ends(served: Running, grammar: str, reason: str) -> None:
    error = served.refusal(CHAT, 400, messages=USER, structured_outputs={"grammar": grammar})
    assert reason in error["message"]
    began = time.monotonic()
    body = served.post(CHAT, messages=USER, structured_outputs={"choice": ["a", f"b {reason}"]}, temperature=1)
    assert body["choices"][0]["message"]["content"][0] in "ab" and time.monotonic() - began < 5


@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "look"}}], ids=["required", "named"]
)
def test_a_forced_call_has_arguments_of_its_schema(tooled: Running, choice: Any) -> None:
    fields = {
        "messages": USER,
        "tools": [TOOL],
        "tool_choice": choice,
        "temperature": 1.0,
        "seed": 2,
        "max_tokens": 150,
    }
    answer = tooled.post(CHAT, **fields, parallel_tool_calls=False)["choices"][0]
    (call,) = answer["message"]["tool_calls"]
    assert answer["finish_reason"] == "tool_calls" and answer["message"]["content"] is None
    assert call["function"]["name"] == "look" and is_place(call["function"]["arguments"]) and call["type"] == "function"
    events = tooled.events(CHAT, **fields, parallel_tool_calls=False)
    deltas = [each for event in events for each in event["choices"][0]["delta"].get("tool_calls", [])]
    assert deltas[0]["function"] == {"name": "look", "arguments": ""} and deltas[0]["id"].startswith("call_")
    assert "".join(each["function"]["arguments"] for each in deltas) == call["function"]["arguments"]
    assert events[-1]["choices"][0]["finish_reason"] == "tool_calls"
    history = [
        *USER,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": call["id"], "content": "42"},
    ]
    ids = tooled.post("/tokenize", messages=history, tools=[TOOL])["tokens"]
    text = tooled.post("/detokenize", tokens=ids)["prompt"]
    assert json.dumps({"name": "look", "arguments": json.loads(call["function"]["arguments"])}) in text


@pytest.mark.parametrize("first", ["<", "["])
def test_with_tools_an_answer_is_a_call_or_follows_the_format(tooled: Running, first: str) -> None:
    (token,) = tooled.model().llm.tokenizer.encode(first, add_special_tokens=False)
    message = tooled.post(
        CHAT,
        messages=USER,
        tools=[TOOL],
        structured_outputs={"regex": r"\[[a-z<]{9}\]"},
        logit_bias={str(token): 100},
        parallel_tool_calls=False,
        temperature=1.0,
        seed=2,
        max_tokens=150,
    )["choices"][0]["message"]
    if first == "<":
        (call,) = message["tool_calls"]
        assert not message["content"] and is_place(call["function"]["arguments"])
    else:
        assert re.fullmatch(r"\[[a-z<]{9}\]", message["content"]) and "tool_calls" not in message


def test_reasoning_has_a_budget_and_the_grammar_follows_it(tooled: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """The demo tokenizer has no token </think>: another stands for it."""
    import hybridge.serve.constraints as constraints

    end = tooled.model().llm.tokenizer.encode("<|user|>", add_special_tokens=False)[0]
    monkeypatch.setattr(constraints, "_token", lambda tokenizer, text: end)
    fields = {"messages": USER, "chat_template_kwargs": {"thinks": True}, "max_tokens": 60, "thinking_budget": 5}
    body = tooled.post(CHAT, **fields, structured_outputs={"choice": ["yes", "no"]}, skip_special_tokens=False)
    answer = body["choices"][0]
    assert answer["message"]["reasoning_content"].endswith(("<|user|>yes", "<|user|>no"))
    assert answer["finish_reason"] == "stop"
    monkeypatch.undo()
    error = tooled.refusal(CHAT, 400, **fields)
    assert error["param"] == "thinking_budget"


def test_tools_that_cannot_be_used(served: Running, tooled: Running) -> None:
    assert served.refusal(CHAT, 400, messages=USER, tools=[TOOL])["param"] == "tools"
    other = {"type": "function", "function": {"name": "other"}}
    assert tooled.refusal(CHAT, 400, messages=USER, tools=[TOOL], tool_choice=other)["param"] == "tool_choice"
    assert tooled.post(CHAT, messages=USER, tools=[TOOL], tool_choice="none", max_tokens=2)["choices"]


@pytest.mark.slow
def test_draft_tokens_follow_the_grammar_too(served: Running, demo: ModelSettings) -> None:
    """n-grams of the prompt propose tokens that the grammar forbids, and others that it allows."""
    text = "-".join(["2024", "1177", "2024", "1177", "2024"])
    fields = {"prompt": f"{text} then {text} and then ", "max_tokens": 40}
    for outputs in ({"regex": "([0-9]{4}-){5}[0-9]"}, {"regex": "([0-9]{3}-){5}[0-9]"}):
        found = []
        with running([replace(demo, draft="ngram", draft_tokens=3)]) as drafting:
            for server in (served, drafting):
                found.append(server.post(COMPLETIONS, **fields, structured_outputs=outputs)["choices"][0]["text"])
            speculation = drafting.model().llm.loop.speculation
            assert speculation is not None and speculation.proposed > 0
        assert found[0] == found[1] and re.fullmatch(outputs["regex"], found[0])
