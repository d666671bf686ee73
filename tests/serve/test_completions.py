"""/v1/completions answers as LLM does."""

from __future__ import annotations

import pytest

from hybridge.runtime.llm import LLM
from hybridge.runtime.sampling import SamplingParams
from tests.serve.running import Running

PATH = "/v1/completions"
TEXT = "The President of the United States"


def test_an_answer_is_that_of_the_model(served: Running, llm: LLM) -> None:
    expected = llm.generate(TEXT, max_new_tokens=12)
    body = served.post(PATH, prompt=TEXT, max_tokens=12)
    assert body["choices"] == [{"index": 0, "text": expected.text, "logprobs": None, "finish_reason": "length"}]
    counts = body["usage"]
    prompt = len(expected.prompt_token_ids)
    assert (counts["prompt_tokens"], counts["completion_tokens"]) == (prompt, 12)
    assert counts["total_tokens"] == prompt + 12


@pytest.mark.parametrize(
    ("fields", "params"),
    [
        ({"temperature": 0.9, "seed": 7}, {"temperature": 0.9, "seed": 7}),
        ({"temperature": 1.1, "seed": -1, "top_k": 9}, {"temperature": 1.1, "seed": 2**64 - 1, "top_k": 9}),
        ({"logit_bias": {"11": 100}}, {"logit_bias": {11: 100.0}}),
        ({"presence_penalty": 2, "frequency_penalty": 1.5}, {"presence_penalty": 2.0, "frequency_penalty": 1.5}),
        ({"repetition_penalty": 1.8}, {"repetition_penalty": 1.8}),
        ({"stop": " the"}, {"stop": [" the"]}),
        ({"include_stop_str_in_output": True, "stop": [" to"]}, {"include_stop_str_in_output": True, "stop": [" to"]}),
        ({"min_tokens": 12, "stop_token_ids": [11]}, {"min_tokens": 12, "stop_token_ids": [11]}),
        ({"bad_words": ["instructed"]}, {"bad_words": ["instructed"]}),
        ({"allowed_token_ids": [11, 12, 13]}, {"allowed_token_ids": [11, 12, 13]}),
        ({"n": 3, "temperature": 1.0, "seed": 3}, {"n": 3, "temperature": 1.0, "seed": 3}),
    ],
    ids=lambda value: "-".join(value),
)  # fmt: skip
def test_parameters_reach_the_sampler(served: Running, llm: LLM, fields: dict, params: dict) -> None:
    found = llm.generate(TEXT, SamplingParams(**params), max_new_tokens=12)
    expected = [found, *found.alternatives]
    choices = served.post(PATH, prompt=TEXT, max_tokens=12, **fields)["choices"]
    assert [choice["text"] for choice in choices] == [answer.text for answer in expected]
    assert [choice["finish_reason"] for choice in choices] == [answer.finish_reason for answer in expected]
    streamed = ["" for _ in expected]
    for event in served.events(PATH, prompt=TEXT, max_tokens=12, **fields):
        streamed[event["choices"][0]["index"]] += event["choices"][0]["text"]
    assert streamed == [answer.text for answer in expected]


def test_several_prompts_of_text_and_of_tokens(served: Running, llm: LLM) -> None:
    texts = [TEXT, "The sea"]
    expected = [answer.text for answer in llm.generate(texts, max_new_tokens=5)]
    ids = [llm.tokenizer.encode(text) for text in texts]
    for prompts in (texts, ids):
        choices = served.post(PATH, prompt=prompts, max_tokens=5)["choices"]
        assert [(choice["index"], choice["text"]) for choice in choices] == list(enumerate(expected))
    events = served.events(PATH, prompt=ids, max_tokens=5, stream_options={"include_usage": True})
    joined = {0: "", 1: ""}
    for event in events[:-1]:
        joined[event["choices"][0]["index"]] += event["choices"][0]["text"]
    assert list(joined.values()) == expected
    assert events[-1]["choices"] == [] and events[-1]["usage"]["completion_tokens"] == 10
    assert served.post(PATH, prompt=ids[1], max_tokens=5)["choices"][0]["text"] == expected[1]


def test_echo_gives_the_log_probabilities_of_a_prompt(served: Running, llm: LLM) -> None:
    expected = llm.generate(TEXT, SamplingParams(logprobs=2, prompt_logprobs=2), max_new_tokens=1)
    body = served.post(PATH, prompt=TEXT, max_tokens=0, echo=True, logprobs=2)
    lists, choice = body["choices"][0]["logprobs"], body["choices"][0]
    assert choice["text"] == TEXT and body["usage"]["completion_tokens"] == 0
    logprobs = [found and found.logprob for found in expected.prompt_logprobs]
    # float32, summed in another order where a prompt is computed in other chunks
    assert lists["token_logprobs"][0] is None
    assert lists["token_logprobs"][1:] == pytest.approx(logprobs[1:], abs=1e-4)
    assert "".join(lists["tokens"][1:]) == TEXT  # the first is the BOS token
    assert lists["text_offset"] == [len("".join(lists["tokens"][:i])) for i in range(len(lists["tokens"]))]
    assert lists["top_logprobs"][0] is None and [len(top) for top in lists["top_logprobs"][1:]] == [2] * (
        len(logprobs) - 1
    )
    events = served.events(PATH, prompt=TEXT, max_tokens=1, echo=True)
    assert "".join(event["choices"][0]["text"] for event in events) == TEXT + expected.text
    assert served.refusal(PATH, 400, prompt=TEXT, echo=True, logprobs=1, stream=True)["param"] == "echo"
    both = served.post(PATH, prompt=TEXT, max_tokens=1, echo=True, logprobs=2)["choices"][0]
    assert both["text"] == TEXT + expected.text
    assert both["logprobs"]["token_logprobs"][-1] == pytest.approx(expected.logprobs[0].logprob, abs=1e-4)
    assert len(both["logprobs"]["tokens"]) == len(lists["tokens"]) + 1


def test_a_repeated_prompt_is_cached_within_its_namespace(served: Running) -> None:
    text = "A prompt of this test alone, which is long enough to be found again."

    def cached(**names: str) -> int:
        return served.post(PATH, prompt=text, max_tokens=1, **names)["usage"]["prompt_tokens_details"]["cached_tokens"]

    assert cached(cache_salt="a") == 0
    assert cached(cache_salt="a") > 10
    assert cached(cache_salt="b") == cached(prompt_cache_key="a") == 0
    assert cached(prompt_cache_key="a") > 10
