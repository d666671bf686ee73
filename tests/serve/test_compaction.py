"""A conversation that the model summarizes, and that continues from the summary."""

from __future__ import annotations

from typing import Any

from hybridge.runtime.llm import LLM
from hybridge.serve.compaction import with_request
from tests.serve.conftest import MOST_TOKENS
from tests.serve.running import Running

USER = {"role": "user", "content": "What is the sea?"}
ANSWER = {"role": "assistant", "content": "Water."}
SUMMARY_TOKENS = MOST_TOKENS // 4


def test_a_conversation_continues_from_its_summary(served: Running, llm: LLM) -> None:
    compacted = served.post("/v1/responses/compact", input=[USER, ANSWER], instructions="Be brief.")
    system = {"role": "system", "content": "Be brief."}
    asked = with_request([USER, ANSWER])
    expected = llm.chat([system, *asked], max_new_tokens=SUMMARY_TOKENS)
    (item,) = compacted["output"]
    assert compacted["object"] == "response.compaction" and item["type"] == "compaction"
    assert compacted["usage"]["input_tokens"] == len(expected.prompt_token_ids)
    assert compacted["usage"]["output_tokens"] == len(expected.token_ids)
    follows = {"role": "user", "content": "And the sky?"}
    found = served.post("/v1/responses", input=[item, follows], max_output_tokens=6)
    whole = llm.chat([asked[-1], {"role": "assistant", "content": expected.text}, follows], max_new_tokens=6)
    assert found["output"][0]["content"][0]["text"] == whole.text
    assert found["usage"]["input_tokens"] == len(whole.prompt_token_ids)


def test_a_last_question_and_the_request_for_a_summary_are_one_message() -> None:
    (only,) = with_request([USER])
    assert only["role"] == "user" and only["content"].startswith(f"{USER['content']}\n\nSummarize")


def test_a_stored_response_is_summarized(served: Running) -> None:
    first = served.post("/v1/responses", input="What is the sea?", max_output_tokens=2)
    fields = {"max_output_tokens": 2, "previous_response_id": first["id"]}
    compacted = served.post("/v1/responses/compact", previous_response_id=first["id"])
    longer = served.post("/v1/responses", input=with_request([ANSWER])[-1]["content"], **fields)
    assert compacted["usage"]["input_tokens"] == longer["usage"]["input_tokens"]


def test_what_cannot_be_compacted_or_continued_is_refused(served: Running) -> None:
    def refused(path: str, status: int, **fields: Any) -> str:
        return served.refusal(path, status, **fields)["message"]

    assert "conversation" in refused("/v1/responses/compact", 400)
    assert "max_tokens" in refused("/v1/responses/compact", 400, input="Hi", max_tokens=3)
    assert "stored response" in refused("/v1/responses/compact", 404, previous_response_id="x")
    for content in ("ä", "not base64", "////", "/w=="):
        item = {"type": "compaction", "encrypted_content": content}
        assert "encrypted_content" in refused("/v1/responses", 400, input=[item])
    call = {"type": "function_call_output", "call_id": "x", "output": "1"}
    assert "function_call" in refused("/v1/responses", 400, input=[USER, call])
