"""/v1/messages and /v1/responses: the same answers in other formats."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hybridge.runtime.llm import LLM
from hybridge.serve import stored_responses
from hybridge.serve.errors import ApiError
from hybridge.serve.stored_responses import StoredResponse, StoredResponses
from tests.serve.running import Running
from tests.serve.test_structured import SCHEMA, is_place

CHAT = "/v1/chat/completions"
QUESTION = "What is the sea?"
USER = [{"role": "user", "content": QUESTION}]


def named_events(served: Running, path: str, **body: Any) -> list[tuple[str, Any]]:
    """Names and data of all events; a name is the type of its data."""
    with served.client.stream("POST", path, json={"model": "demo", "stream": True, **body}) as response:
        assert response.status_code == 200
        lines = [line for line in response.iter_lines() if line.startswith(("event: ", "data: {"))]
    found = [
        (name.removeprefix("event: "), json.loads(data.removeprefix("data: ")))
        for name, data in zip(lines[::2], lines[1::2], strict=True)
    ]
    assert all(name == data["type"] for name, data in found)
    return found


def test_a_message_is_the_answer_of_the_chat(served: Running, llm: LLM) -> None:
    system = [
        {"type": "text", "text": "Be "},
        {"type": "text", "text": "brief.", "cache_control": {"type": "ephemeral"}},
    ]
    expected = llm.chat([{"role": "system", "content": "Be brief."}, *USER], max_new_tokens=9)
    body = served.post("/v1/messages", messages=USER, system=system, max_tokens=9)
    assert body["content"] == [{"type": "text", "text": expected.text}]
    assert (body["type"], body["role"], body["stop_reason"]) == ("message", "assistant", "max_tokens")
    counts = body["usage"]
    assert counts["input_tokens"] + counts["cache_read_input_tokens"] == len(expected.prompt_token_ids)
    assert counts["output_tokens"] == 9
    count = served.post("/v1/messages/count_tokens", messages=USER, system="Be brief.")
    assert count == {"input_tokens": len(expected.prompt_token_ids)}


def test_events_of_a_message(served: Running) -> None:
    fields = {"messages": USER, "max_tokens": 30, "stop_sequences": [" the"]}
    whole = served.post("/v1/messages", **fields)
    assert whole["stop_reason"] == "stop_sequence" and whole["stop_sequence"] == " the"
    events = named_events(served, "/v1/messages", **fields)
    names = [name for name, _ in events]
    assert names[:2] == ["message_start", "content_block_start"]
    assert names[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    text = "".join(data["delta"]["text"] for name, data in events if name == "content_block_delta")
    assert text == whole["content"][0]["text"]
    assert events[-2][1]["delta"] == {"stop_reason": "stop_sequence", "stop_sequence": " the"}
    assert events[-2][1]["usage"]["output_tokens"] == whole["usage"]["output_tokens"]


def test_tools_of_messages(tooled: Running) -> None:
    tool = {"name": "look", "description": "Looks.", "input_schema": SCHEMA}
    fields = {"messages": USER, "tools": [tool], "tool_choice": {"type": "any", "disable_parallel_tool_use": True}}
    body = tooled.post("/v1/messages", **fields, max_tokens=150)
    (call,) = body["content"]
    assert body["stop_reason"] == "tool_use" and call["type"] == "tool_use" and is_place(json.dumps(call["input"]))
    events = named_events(tooled, "/v1/messages", **fields, max_tokens=150)
    parts = [data["delta"]["partial_json"] for name, data in events if name == "content_block_delta"]
    assert json.loads("".join(parts)) == call["input"]
    result = {"type": "tool_result", "tool_use_id": call["id"], "content": [{"type": "text", "text": "42"}]}
    history = [*USER, {"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
    counts = [
        tooled.post("/v1/messages/count_tokens", messages=each, tools=[tool])["input_tokens"]
        for each in (USER, history)
    ]
    assert counts[1] > counts[0] + 20
    thinking = {"type": "enabled", "budget_tokens": 3}
    assert tooled.post("/v1/messages", messages=USER, max_tokens=5, thinking={"type": "disabled"})["content"]
    response = tooled.client.post(
        "/v1/messages", json={"model": "demo", "messages": USER, "max_tokens": 5, "thinking": thinking}
    )
    assert response.status_code == 400 and response.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": USER},
        {"messages": [], "max_tokens": 1},
        {"messages": [*USER, {"role": "assistant", "content": "The"}], "max_tokens": 1},
        {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}], "max_tokens": 1},
        {"messages": USER, "max_tokens": 1, "temperature": 1.5},
        {"messages": USER, "max_tokens": 1, "tool_choice": {"type": "tool"}},
    ],
)
def test_bad_messages(served: Running, fields: dict[str, Any]) -> None:
    response = served.client.post("/v1/messages", json={"model": "demo", **fields})
    body = response.json()
    assert response.status_code == 400 and body["type"] == "error" and set(body["error"]) == {"type", "message"}


def test_a_response_is_the_answer_of_the_chat(served: Running, llm: LLM) -> None:
    expected = llm.chat([{"role": "system", "content": "Be brief."}, *USER], max_new_tokens=9)
    items = [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": QUESTION}]}]
    for given in (QUESTION, items):
        body = served.post("/v1/responses", input=given, instructions="Be brief.", max_output_tokens=9)
        (item,) = body["output"]
        assert [part["text"] for part in item["content"]] == [expected.text] and item["role"] == "assistant"
        assert body["status"] == "incomplete" and body["incomplete_details"] == {"reason": "max_output_tokens"}
        assert body["usage"]["input_tokens"] == len(expected.prompt_token_ids)
        assert body["usage"]["total_tokens"] == len(expected.prompt_token_ids) + 9


def test_events_of_a_response(served: Running) -> None:
    whole = served.post("/v1/responses", input=QUESTION, max_output_tokens=9)
    events = named_events(served, "/v1/responses", input=QUESTION, max_output_tokens=9)
    assert [data["sequence_number"] for _, data in events] == list(range(len(events)))
    names = [name.removeprefix("response.") for name, _ in events]
    assert names[:4] == ["created", "in_progress", "output_item.added", "content_part.added"]
    assert names[-4:] == ["output_text.done", "content_part.done", "output_item.done", "incomplete"]
    text = "".join(data["delta"] for name, data in events if name == "response.output_text.delta")
    assert text == whole["output"][0]["content"][0]["text"] == events[-4][1]["text"]
    last = events[-1][1]["response"]
    assert last["output"][0]["content"] == whole["output"][0]["content"] and last["usage"]["output_tokens"] == 9


@pytest.mark.parametrize("stream", [False, True])
def test_a_response_continues_an_earlier_one(served: Running, stream: bool) -> None:
    """The same conversation, given as a whole, has the same tokens; instructions are those of the request alone."""

    def respond(stream: bool = False, **fields: Any) -> Any:
        fields |= {"max_output_tokens": 6}
        if stream:
            return named_events(served, "/v1/responses", **fields)[-1][1]["response"]
        return served.post("/v1/responses", **fields)

    first = respond(stream, input=QUESTION, instructions="Be brief.")
    second = respond(stream, input="And the sky?", previous_response_id=first["id"])
    assert first["store"] and second["previous_response_id"] == first["id"]
    history = [{"role": "user", "content": QUESTION}, *first["output"], {"role": "user", "content": "And the sky?"}]
    whole = respond(input=history, store=False)
    assert whole["usage"]["input_tokens"] == second["usage"]["input_tokens"] and not whole["store"]
    assert whole["output"][0]["content"] == second["output"][0]["content"]
    third = respond(input="Why?", previous_response_id=second["id"])
    assert third["usage"]["input_tokens"] > second["usage"]["input_tokens"]
    for unknown in (whole["id"], "x"):
        error = served.refusal("/v1/responses", 404, input="Why?", previous_response_id=unknown)
        assert error["code"] == "previous_response_not_found"


def test_stored_responses_are_bounded_and_belong_to_a_client() -> None:
    messages = [{"role": "user", "content": "x" * 10}]

    def response(name: str, messages: list[dict[str, str]] = messages) -> StoredResponse:
        return StoredResponse({"id": name}, [], messages)

    stored = StoredResponses(2 * stored_responses._size(("ann", "a"), response("a").to_json()))
    for name in ("a", "b"):
        stored.add("ann", response(name))
    assert stored.messages("ann", "a") == messages
    stored.add("ann", response("c"))  # "b" was unused for longest
    stored.add("ann", response("large", messages * 99))
    for tenant, name in (("ann", "b"), ("bob", "a"), ("ann", "large")):
        for method in (stored.get, stored.delete, stored.messages):
            with pytest.raises(ApiError, match="expected a stored response"):
                method(tenant, name)
    assert stored.messages("ann", "a") == stored.messages("ann", "c") == messages
    stored.delete("ann", "a")
    stored.add("ann", response("d"))  # replaces "a"
    assert stored.get("ann", "c").response == {"id": "c"} and stored.get("ann", "d").messages == messages


def test_stored_responses_are_read_and_deleted(served: Running) -> None:
    items = [
        {"role": "user", "content": QUESTION},
        {"role": "assistant", "content": "Water.", "id": "msg_given"},
        {"role": "user", "content": [{"type": "input_text", "text": "Why?"}]},
    ]
    first = served.post("/v1/responses", input=items, max_output_tokens=2)
    path = f"/v1/responses/{first['id']}"
    second = named_events(served, "/v1/responses", input="And?", previous_response_id=first["id"], max_output_tokens=2)

    def get(path: str, status: int = 200) -> Any:
        response = served.client.get(path)
        assert response.status_code == status, response.text
        return response.json()

    assert get(path) == first
    last = second[-1][1]["response"]
    assert get(f"/v1/responses/{last['id']}") == last
    shown = get(f"{path}/input_items?order=asc")
    texts = [(item["role"], item["content"][0]["type"], item["content"][0]["text"]) for item in shown["data"]]
    assert texts == [
        ("user", "input_text", QUESTION),
        ("assistant", "output_text", "Water."),
        ("user", "input_text", "Why?"),
    ]
    assert shown["data"][1]["id"] == "msg_given" and not shown["has_more"]
    page = get(f"{path}/input_items?limit=1")
    assert page["data"] == shown["data"][2:] and page["has_more"] and page["first_id"] == page["last_id"]
    assert get(f"{path}/input_items?after=msg_given")["data"] == shown["data"][:1]
    empty = get(f"{path}/input_items?order=asc&after={shown['last_id']}")
    assert (empty["data"], empty["first_id"]) == ([], None)
    for query in ("?stream=true", "/input_items?limit=101", "/input_items?after=x", "/input_items?order=up"):
        assert get(path + query, 400)["error"]["param"] in query
    assert served.client.delete(path).json() == {"id": first["id"], "object": "response", "deleted": True}
    assert served.client.delete(path).status_code == 404
    unstored = served.post("/v1/responses", input=QUESTION, max_output_tokens=2, store=False)
    for gone in (path, f"{path}/input_items", f"/v1/responses/{unstored['id']}"):
        assert get(gone, 404)["error"]["type"] == "not_found_error"
    third = served.post("/v1/responses", input="So?", previous_response_id=last["id"], max_output_tokens=2)
    assert third["usage"]["input_tokens"] > last["usage"]["input_tokens"]


def test_functions_and_formats_of_responses(tooled: Running) -> None:
    tool = {"type": "function", "name": "look", "parameters": SCHEMA}
    fields = {"tools": [tool], "tool_choice": {"type": "function", "name": "look"}, "parallel_tool_calls": False}
    body = tooled.post("/v1/responses", input=QUESTION, **fields)
    (call,) = body["output"]
    assert body["status"] == "completed" and call["type"] == "function_call" and is_place(call["arguments"])
    events = named_events(tooled, "/v1/responses", input=QUESTION, **fields)
    done = [data for name, data in events if name == "response.function_call_arguments.done"]
    assert [each["arguments"] for each in done] == [call["arguments"]]
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": "42"}
    history = [{"role": "user", "content": QUESTION}, call, output]
    again = tooled.post("/v1/responses", input=history, tools=[tool], max_output_tokens=2)
    continued = tooled.post(
        "/v1/responses", input=[output], previous_response_id=body["id"], tools=[tool], max_output_tokens=2
    )
    for each in (again, continued):
        each["output"] = [item["content"] for item in each["output"]]
    assert continued["output"] == again["output"]
    assert continued["usage"]["input_tokens"] == again["usage"]["input_tokens"]
    form = {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}}
    answer = tooled.post("/v1/responses", input=QUESTION, text=form)
    assert is_place(answer["output"][0]["content"][0]["text"]) and answer["text"]["format"]["schema"] == SCHEMA
    several: list[dict[str, Any]] = [
        {"input": []},
        {"input": QUESTION, "background": True},
        {"input": QUESTION, "top_logprobs": 2},
        {"input": QUESTION, "include": ["message.output_text.logprobs"]},
    ]
    for bad in several:
        tooled.refusal("/v1/responses", 400, **bad)
    tooled.refusal("/v1/responses", 400, input=QUESTION, text={"format": {"type": "json_schema", "name": "x"}})
