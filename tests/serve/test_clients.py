"""The official clients of OpenAI and Anthropic read what the server writes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import openai
import pytest

from tests.serve.running import Running
from tests.serve.test_structured import SCHEMA, is_place

pytestmark = pytest.mark.slow
USER = [{"role": "user", "content": "What is the sea?"}]
FUNCTION: dict[str, Any] = {"type": "function", "function": {"name": "look", "parameters": SCHEMA}}


@pytest.fixture
def client(tooled: Running) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{tooled.server.url}/v1", api_key="none", max_retries=0) as found:
        yield found


@pytest.fixture
def other(tooled: Running) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=tooled.server.url, api_key="none", max_retries=0) as found:
        yield found


def test_completions(client: Any) -> None:
    whole = client.completions.create(model="demo", prompt="The sea", max_tokens=8, logprobs=1)
    assert whole.usage.completion_tokens == 8 and len(whole.choices[0].logprobs.tokens) == 8
    stream = client.completions.create(model="demo", prompt="The sea", max_tokens=8, stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream) == whole.choices[0].text


def test_chats(client: Any) -> None:
    whole = client.chat.completions.create(model="demo", messages=USER, max_tokens=8, logprobs=True, top_logprobs=2)
    assert len(whole.choices[0].logprobs.content[0].top_logprobs) == 2
    options = {
        "stream_options": {"include_usage": True},
        "extra_body": {"structured_outputs": {"choice": ["yes", "no"]}},
    }
    with client.chat.completions.stream(model="demo", messages=USER, **options) as stream:
        found = stream.get_final_completion()
    assert found.choices[0].message.content in ("yes", "no")
    assert 0 < found.usage.prompt_tokens_details.cached_tokens < found.usage.prompt_tokens


def test_calls_of_tools(client: Any) -> None:
    fields = {"tools": [FUNCTION], "tool_choice": "required", "max_tokens": 150, "parallel_tool_calls": False}
    whole = client.chat.completions.create(model="demo", messages=USER, **fields)
    arguments = whole.choices[0].message.tool_calls[0].function.arguments
    assert is_place(arguments)
    with client.chat.completions.stream(model="demo", messages=USER, **fields) as stream:
        streamed = stream.get_final_completion()
    assert streamed.choices[0].message.tool_calls[0].function.arguments == arguments


def test_responses(client: Any) -> None:
    whole = client.responses.create(model="demo", input="What is the sea?", max_output_tokens=9)
    assert whole.status == "incomplete" and whole.output_text
    assert client.responses.retrieve(whole.id).output_text == whole.output_text
    assert client.responses.input_items.list(whole.id).data[0].content[0].text == "What is the sea?"
    client.responses.delete(whole.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(whole.id)
    text = {"format": {"type": "json_schema", "name": "place", "schema": SCHEMA}}
    with client.responses.stream(model="demo", input="What is the sea?", text=text) as stream:
        kinds = [event.type for event in stream]
        assert is_place(stream.get_final_response().output_text)
    assert kinds[0] == "response.created" and kinds[-1] == "response.completed"


def test_models_and_errors(client: Any) -> None:
    assert [model.id for model in client.models.list()] == ["demo"] and client.models.retrieve("demo").id == "demo"
    with pytest.raises(openai.NotFoundError) as found:
        client.completions.create(model="none", prompt="x")
    assert found.value.code == "model_not_found" and found.value.param == "model"
    with pytest.raises(openai.BadRequestError) as refused:
        client.completions.create(model="demo", prompt="x " * 4000)
    assert refused.value.code == "context_length_exceeded"


def test_messages(other: Any) -> None:
    whole = other.messages.create(model="demo", max_tokens=9, messages=USER, system="Be brief.")
    with other.messages.stream(model="demo", max_tokens=9, messages=USER, system="Be brief.") as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == whole.content[0].text == final.content[0].text
    assert final.usage.output_tokens == 9 and final.stop_reason == "max_tokens"
    count = other.messages.count_tokens(model="demo", messages=USER, system="Be brief.").input_tokens
    assert count == whole.usage.input_tokens + whole.usage.cache_read_input_tokens
    tool = {"name": "look", "input_schema": SCHEMA}
    choice = {"type": "tool", "name": "look", "disable_parallel_tool_use": True}
    called = other.messages.create(model="demo", max_tokens=150, messages=USER, tools=[tool], tool_choice=choice)
    assert called.stop_reason == "tool_use" and is_place(json.dumps(called.content[0].input))
    with pytest.raises(anthropic.BadRequestError):
        other.messages.create(model="demo", max_tokens=9, messages=[])


def test_answers_are_sent_back_as_they_came(client: Any, other: Any) -> None:
    """With all fields that the client knows, most of them null."""
    fields = {"tools": [FUNCTION], "tool_choice": "required", "max_tokens": 150, "parallel_tool_calls": False}
    answer = client.chat.completions.create(model="demo", messages=USER, **fields).choices[0].message
    result = {"role": "tool", "tool_call_id": answer.tool_calls[0].id, "content": "blue"}
    messages = [*USER, answer.model_dump(), result]
    assert client.chat.completions.create(model="demo", messages=messages, tools=[FUNCTION], max_tokens=4).choices
    tool = {"type": "function", **FUNCTION["function"]}
    response = client.responses.create(model="demo", input=USER, tools=[tool], tool_choice="required")
    output = {"type": "function_call_output", "call_id": response.output[0].call_id, "output": "blue"}
    items = [*USER, *(item.model_dump() for item in response.output), output]
    compacted = client.responses.compact(model="demo", input=items)
    items = [item.model_dump() for item in compacted.output] + USER
    assert client.responses.create(model="demo", input=items, max_output_tokens=4).output_text
    tools = [{"name": "look", "input_schema": SCHEMA}]
    choice = {"type": "any", "disable_parallel_tool_use": True}
    message = other.messages.create(model="demo", max_tokens=150, messages=USER, tools=tools, tool_choice=choice)
    blocks = [block.model_dump() for block in message.content]
    failed = {"type": "tool_result", "tool_use_id": blocks[0]["id"], "content": "no light", "is_error": True}
    turns = [*USER, {"role": "assistant", "content": blocks}, {"role": "user", "content": [failed]}]
    assert other.messages.create(model="demo", max_tokens=4, messages=turns, tools=tools).content


def test_responses_over_a_websocket(client: Any) -> None:
    pytest.importorskip("websockets", reason="needs the package websockets")
    with client.responses.connect() as connection:
        connection.response.create(model="demo", input="What is the sea?", max_output_tokens=9)
        events: list[Any] = []
        while not events or events[-1].type != "response.incomplete":
            events.append(connection.recv())
    whole = client.responses.create(model="demo", input="What is the sea?", max_output_tokens=9)
    assert events[-1].response.output_text == whole.output_text
