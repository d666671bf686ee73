"""LLM: prompts of every kind, limits, streaming, stop conditions and chat, over the exact toy engine."""

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridge.artifact.errors import ArtifactError, RequestError, SettingError
from hybridge.runtime.llm import LLM
from hybridge.runtime.sampling import SamplingParams
from tests.runtime.generation.toy_llm import VOCAB, engine_of, greedy, toy_llm
from tests.runtime.sandbox.test_process import children, needs_proc
from tests.runtime.toy_engine import ToyEngine, toy_config
from tests.support.effort import examples

BOS = 0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("toy")


@pytest.fixture
def llm(folder: Path) -> LLM:
    return toy_llm(folder)


def test_one_prompt_gives_one_generation_and_a_list_gives_a_list(llm: LLM) -> None:
    assert llm.tokenizer is not None
    ids = llm.tokenizer.encode("world")
    expected = greedy(llm, ids, 4)
    for prompt in ("world", ids, tuple(ids), np.array(ids)):
        generation = llm.generate(prompt, max_new_tokens=4)
        assert (generation.token_ids, generation.prompt_token_ids) == (expected, tuple(ids))
        assert generation.text == llm.tokenizer.decode(expected)
    for prompts in (["world"], [ids], (tuple(ids),), np.array([ids])):
        assert [g.token_ids for g in llm.generate(prompts, max_new_tokens=4)] == [expected]
    assert llm.generate([]) == []


@pytest.mark.parametrize(
    ("prompt", "ids"),
    [("", (BOS,)), ("<s>", (BOS, BOS)), ("</s><|end|>", (BOS, 1, 2)), ([5], (5,))],
    ids=["empty text", "only BOS", "only special tokens", "one token"],
)
def test_short_prompts(llm: LLM, prompt: Any, ids: tuple[int, ...]) -> None:
    result = llm.generate(prompt, max_new_tokens=3)
    generation = result[0] if isinstance(result, list) else result
    assert (generation.prompt_token_ids, generation.token_ids) == (ids, greedy(llm, ids, 3))


def test_an_empty_prompt_without_bos_is_refused(tmp_path: Path) -> None:
    llm = toy_llm(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("{}")
    data = json.loads((tmp_path / "tokenizer.json").read_text())
    data["post_processor"] = None
    (tmp_path / "tokenizer.json").write_text(json.dumps(data))
    llm = LLM(tmp_path, engine=llm.engine)
    with pytest.raises(RequestError, match="prompt 1: expected at least one token, found none, and there is no BOS"):
        llm.generate(["world", ""])
    assert engine_of(llm).steps == []


@pytest.mark.parametrize("length", [95, 96])
def test_generation_ends_at_max_seq_len(llm: LLM, length: int) -> None:
    prompt = [i % 50 for i in range(length)]
    generation = llm.generate(prompt, max_new_tokens=10)
    # The last token needs no place in the caches.
    assert generation.token_ids == greedy(llm, prompt, 97 - length)
    assert generation.finish_reason == "length"


def test_a_longer_prompt_is_refused_before_any_work(llm: LLM, folder: Path) -> None:
    with pytest.raises(RequestError, match=r"prompt 1: expected at most 96 tokens \(max_seq_len\), found 97"):
        llm.generate([[1], [1] * 97])
    lower = LLM(folder, engine=llm.engine, max_seq_len=8)
    with pytest.raises(RequestError, match=r"expected at most 8 tokens .*found 9: shorten it"):
        lower.generate([1] * 9)
    assert len(lower.generate([1] * 5, max_new_tokens=50).token_ids) == 4
    assert engine_of(llm).steps[0] == (1, 5)


class Unread(list[int]):
    """Token ids that nothing may look through."""

    def __iter__(self) -> Iterator[int]:
        raise AssertionError("the ids were read one by one")


def test_how_many_ids_are_too_many_is_known_without_reading_them(llm: LLM) -> None:
    with pytest.raises(RequestError, match=r"prompt: expected at most 96 tokens .*found 97"):
        llm.generate(Unread([1] * 97))


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ([1, VOCAB], f"prompt: expected token ids from 0 to {VOCAB - 1}, found {VOCAB}"),
        ([-1], "prompt: expected token ids"),
        ([True], "prompt: expected token ids"),
        ([[1], [2.5]], "prompt 1: expected token ids .*found 2.5"),
        ([3, "a"], "prompt: expected token ids .*found 'a'"),
        (["a", 3], "prompt 1: expected text or token ids, found int"),
        (7, "prompt: expected text, token ids or a list of them, found int"),
        (None, "prompt: expected text"),
        (b"abc", "found bytes"),
        ({1: [2], "a": 3}, r"expected an object with .* alone, found \['1', 'a'\]"),
    ],
)
def test_bad_prompts_are_named(llm: LLM, prompt: Any, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        llm.generate(prompt)
    assert engine_of(llm).steps == []


def test_bad_sampling_is_named(llm: LLM) -> None:
    for bad in ([SamplingParams()], {"temperature": 1}, [1, 2], 3):
        with pytest.raises(RequestError, match="sampling: expected SamplingParams, or a list of 2"):
            llm.generate(["a", "b"], bad)  # type: ignore[call-overload]
    with pytest.raises(RequestError, match="max_new_tokens: expected an integer of at least 1"):
        llm.generate("a", max_new_tokens=0)


def test_max_new_tokens_of_the_call_goes_before_that_of_the_sampling(llm: LLM) -> None:
    params = SamplingParams(max_new_tokens=2)
    assert len(llm.generate([1], params).token_ids) == 2
    assert len(llm.generate([1], params, max_new_tokens=5).token_ids) == 5


def test_eos_ends_a_generation_and_has_no_text(folder: Path) -> None:
    free = toy_llm(folder).generate([3], max_new_tokens=12)
    eos = free.token_ids[5]
    first = free.token_ids.index(eos)
    llm = toy_llm(folder, eos=(eos,))
    generation = llm.generate([3], max_new_tokens=12)
    assert generation.token_ids == free.token_ids[: first + 1]
    assert (generation.finish_reason, generation.stopped_by) == ("stop", eos)
    assert llm.tokenizer is not None and generation.text == llm.tokenizer.decode(free.token_ids[:first])
    assert llm.generate([3], SamplingParams(ignore_eos=True), max_new_tokens=12).token_ids == free.token_ids
    stopped = toy_llm(folder).generate([3], SamplingParams(stop_token_ids=eos), max_new_tokens=12)
    assert (stopped.token_ids, stopped.text) == (generation.token_ids, generation.text)


def test_eos_on_the_last_allowed_token_is_a_stop(folder: Path) -> None:
    first = toy_llm(folder).generate([3], max_new_tokens=1).token_ids[0]
    generation = toy_llm(folder, eos=(first,)).generate([3], max_new_tokens=1)
    assert (generation.finish_reason, generation.text) == ("stop", "")


def test_eos_tokens_come_from_the_artifact_and_the_generation_config(tmp_path: Path) -> None:
    llm = toy_llm(tmp_path, eos=(7,))
    assert llm.eos_token_ids == (7,)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [9, 7]}')
    assert LLM(tmp_path, engine=llm.engine).eos_token_ids == (7, 9)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": 11}')
    assert LLM(tmp_path, engine=llm.engine).eos_token_ids == (7, 11)
    (tmp_path / "generation_config.json").unlink()
    bare = ToyEngine(dataclasses.replace(llm.config, eos_token_ids=()))
    assert LLM(tmp_path, engine=bare).eos_token_ids == (1,)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": "x"}')
    with pytest.raises(ArtifactError, match=r"generation_config\.json: eos_token_id: expected a token id"):
        LLM(tmp_path, engine=llm.engine)


def test_recommended_sampling_is_read_but_never_applied_by_itself(tmp_path: Path) -> None:
    llm = toy_llm(tmp_path)
    assert llm.recommended_sampling.greedy
    (tmp_path / "generation_config.json").write_text('{"do_sample": true, "temperature": 0.6, "top_p": 0.95}')
    llm = LLM(tmp_path, engine=llm.engine)
    assert llm.recommended_sampling == SamplingParams(temperature=0.6, top_p=0.95)
    assert llm.generate([1], max_new_tokens=8).token_ids == greedy(llm, [1], 8)
    (tmp_path / "generation_config.json").write_text('{"do_sample": true, "top_p": 7}')
    with pytest.raises(ArtifactError, match=r"generation_config\.json: top_p"):
        _ = LLM(tmp_path, engine=llm.engine).recommended_sampling


@settings(max_examples=examples(40), deadline=None)
@given(data=st.data(), prompt=st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=6))
def test_a_stop_string_cuts_the_text_before_it(folder: Path, data: st.DataObject, prompt: list[int]) -> None:
    llm = toy_llm(folder)
    text = llm.generate(prompt, max_new_tokens=20).text
    start = data.draw(st.integers(0, max(len(text) - 1, 0)))
    stop = text[start : start + data.draw(st.integers(1, 6))] or "never"
    pieces = list(llm.generate(prompt, SamplingParams(stop=stop), max_new_tokens=20, stream=True))
    generation = pieces[-1].generation
    assert generation is not None
    assert generation.text == "".join(piece.text for piece in pieces) == text.partition(stop)[0]
    if stop in text:
        assert (generation.finish_reason, generation.stopped_by) == ("stop", stop)


def test_the_pieces_of_a_stream_make_the_generations(llm: LLM) -> None:
    prompts = ["world", "the spleen", "Call me", "👩‍👩‍👧", "x", "y"]
    params = [SamplingParams(1.0, seed=i, max_new_tokens=9 + i, logprobs=1) for i in range(6)]
    whole = llm.generate(prompts, params)
    texts, ended = [""] * 6, [0] * 6
    tokens: list[tuple[int, ...]] = [()] * 6
    logprobs: list[Any] = [()] * 6
    for piece in llm.generate(prompts, params, stream=True):
        assert not ended[piece.index] and len(piece.token_ids) == 1
        texts[piece.index] += piece.text
        tokens[piece.index] += piece.token_ids
        logprobs[piece.index] += piece.logprobs
        ended[piece.index] = piece.finish_reason is not None
        assert (piece.generation is not None) == ended[piece.index]
    assert texts == [g.text for g in whole] and tokens == [g.token_ids for g in whole]
    assert logprobs == [g.logprobs for g in whole] and all(ended)


def test_logprobs_are_those_of_the_tokens_chosen(llm: LLM) -> None:
    generation = llm.generate([3], SamplingParams(logprobs=3), max_new_tokens=5)
    assert generation.logprobs is not None and len(generation.logprobs) == 5
    assert tuple(entry.token_id for entry in generation.logprobs) == generation.token_ids
    for entry in generation.logprobs:
        assert entry.top[0] == (entry.token_id, entry.logprob) and len(entry.top) == 3
    assert llm.generate([3], max_new_tokens=2).logprobs is None


def test_timings_are_in_order(llm: LLM) -> None:
    timings = llm.generate([3], max_new_tokens=5).timings
    assert 0 < timings.queued < timings.first_token <= timings.last_token and timings.new_tokens == 5
    best = llm.generate([3], SamplingParams(beam_width=2), max_new_tokens=5).timings
    assert 0 < best.queued < best.first_token <= best.last_token
    assert timings.decode_tokens_per_second is not None and timings.decode_tokens_per_second > 0
    assert llm.generate([3], max_new_tokens=1).timings.decode_tokens_per_second is None


def test_an_artifact_without_tokenizer_takes_and_gives_ids(tmp_path: Path) -> None:
    llm = LLM(tmp_path, engine=ToyEngine(toy_config()))
    generation = llm.generate([1, 2], max_new_tokens=3)
    assert generation.text == "" and generation.token_ids == greedy(llm, [1, 2], 3)
    with pytest.raises(RequestError, match=r"prompt: the artifact has no tokenizer\.json: pass token ids"):
        llm.generate("text")
    with pytest.raises(RequestError, match=r"stop: the artifact has no tokenizer\.json"):
        llm.generate([1], SamplingParams(stop="x"))
    with pytest.raises(RequestError, match="expected at least one token"):
        llm.generate([[]])


TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{{ m.role + ': ' + m.content + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant:' }}{% endif %}"
)


def test_chat_encodes_the_rendered_conversation_as_it_stands(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text(TEMPLATE)
    llm = toy_llm(tmp_path)
    assert llm.tokenizer is not None
    messages = [{"role": "user", "content": "Call me"}]
    ids = llm.tokenizer.encode("<s>user: Call me<|end|>assistant:", add_special_tokens=False)
    assert ids.count(BOS) == 1
    generation = llm.chat(messages, max_new_tokens=4)
    assert generation.prompt_token_ids == tuple(ids) and generation.token_ids == greedy(llm, ids, 4)
    assert [g.token_ids for g in llm.chat([messages, messages], max_new_tokens=4)] == [generation.token_ids] * 2
    assert "".join(piece.text for piece in llm.chat(messages, max_new_tokens=4, stream=True)) == generation.text


@needs_proc
def test_closing_ends_the_process_of_the_template(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text(TEMPLATE)
    before = children()
    with toy_llm(tmp_path) as llm:
        assert children() <= before
        llm.chat("Call me", max_new_tokens=1)
        assert len(children() - before) == 1
    assert children() <= before


def test_a_text_is_one_message_of_the_user(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text(TEMPLATE)
    llm = toy_llm(tmp_path)
    expected = llm.chat([{"role": "user", "content": "Call me"}], max_new_tokens=4)
    assert llm.chat("Call me", max_new_tokens=4).token_ids == expected.token_ids
    assert "".join(piece.text for piece in llm.chat("Call me", max_new_tokens=4, stream=True)) == expected.text


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        (["hi", "there"], "messages: expected objects with a role and a content, found 'hi'"),
        ([{"role": "user", "content": "x"}, "hi"], "found 'hi'"),
        ([[{"role": "user", "content": "x"}], "hi"], "messages: expected objects"),
        ({"role": "user", "content": "x"}, "a list of objects with a role and a content.*found dict"),
        (None, "found NoneType"),
        (7, "found int"),
        ([], "expected at least one message, found none"),
        ([[]], "expected at least one message, found none"),
    ],
)
def test_bad_messages_are_named(tmp_path: Path, messages: Any, words: str) -> None:
    (tmp_path / "chat_template.jinja").write_text(TEMPLATE)
    llm = toy_llm(tmp_path)
    with pytest.raises(RequestError, match=words):
        llm.chat(messages)
    assert engine_of(llm).steps == []


def test_a_system_prompt_is_a_prefix_of_its_conversations(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text(TEMPLATE)
    llm = toy_llm(tmp_path)
    system = {"role": "system", "content": "little money"}
    conversation = [system, {"role": "user", "content": "world"}]
    expected = llm.chat(conversation, max_new_tokens=6)
    prefix = llm.cache_prefix([system])
    generation = llm.chat(conversation, max_new_tokens=6)
    assert generation.cached_tokens == prefix.length > 0
    assert generation.token_ids == expected.token_ids


def test_chat_without_a_template_is_refused_and_generate_is_not(llm: LLM) -> None:
    with pytest.raises(RequestError, match="no chat template"):
        llm.chat([{"role": "user", "content": "x"}])
    assert llm.generate("x", max_new_tokens=1).text is not None


@pytest.mark.parametrize(("name", "value"), [("max_batch_size", 5), ("max_batch_size", 0), ("max_seq_len", 97)])
def test_limits_may_only_be_lowered(folder: Path, name: str, value: int) -> None:
    engine = ToyEngine(toy_config(vocab=VOCAB))
    with pytest.raises(SettingError, match=f"{name}: expected an integer from 1 to"):
        LLM(folder, engine=engine, **{name: value})  # type: ignore[arg-type]


def test_a_lower_batch_limit_is_accepted(folder: Path) -> None:
    llm = LLM(folder, engine=ToyEngine(toy_config(vocab=VOCAB)), max_batch_size=2)
    generations = llm.generate([[1], [2], [3]], max_new_tokens=2)
    assert [g.token_ids for g in generations] == [greedy(llm, [i], 2) for i in (1, 2, 3)]
    assert max(rows for rows, _ in engine_of(llm).steps) == 2


def test_closing_closes_the_engine_also_twice(folder: Path) -> None:
    with toy_llm(folder) as llm:
        llm.generate([1], max_new_tokens=1)
    llm.close()
    assert engine_of(llm).closed
