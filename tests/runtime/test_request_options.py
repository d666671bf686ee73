"""What a request may ask for, over dense and paged artifacts alike: the same tokens as a loop that recomputes all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hybridge.artifact.errors import EngineError, RequestError
from hybridge.runtime.llm import LLM
from hybridge.runtime.prefix_cache.settings import PrefixCacheSettings
from hybridge.runtime.sampling import SamplingParams
from hybridge.runtime.scheduler import Priority
from hybridge.runtime.serving.settings import ServingSettings
from hybridge.runtime.speculation import SpeculationSettings
from tests.runtime import toy_engine, toy_paged_engine
from tests.runtime.generation.toy_llm import VOCAB, toy_llm
from tests.runtime.sampling.edited import best_continuation
from tests.runtime.text.tokenizer_files import byte_level_tokenizer
from tests.runtime.toy_engine import HYBRID
from tests.runtime.toy_paged_engine import ToyPagedEngine, paged_config

KINDS = ["dense", "dense all logits", "paged", "radix", "blocks", "speculative", "short of memory"]
Logits = Callable[[list[int]], np.ndarray]


def paged_llm(folder: Path, layers: Any = HYBRID, memory: int = 40_000, **settings: Any) -> LLM:
    byte_level_tokenizer(folder)
    engine = ToyPagedEngine(paged_config(layers, vocab=VOCAB, eos=(VOCAB - 1,)), 24, max_rows=8)
    return LLM(folder, engine, serving=ServingSettings(block_size=4, memory_bytes=memory, **settings))


def opened(kind: str, folder: Path) -> LLM:
    if kind.startswith("dense"):
        return toy_llm(folder, all_logits=kind != "dense", max_step_tokens=5)
    if kind == "blocks":
        return paged_llm(folder, ("attention", "attention"))
    if kind == "speculative":
        return paged_llm(folder, speculation=SpeculationSettings(3, adaptive=False), prefix_cache="radix")
    return paged_llm(
        folder,
        memory=11_000 if kind == "short of memory" else 40_000,
        prefix_cache="radix" if kind == "radix" else "off",
    )


@pytest.fixture(params=KINDS)
def llm(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LLM]:
    with opened(request.param, tmp_path) as llm:
        yield llm


def logits_of(llm: LLM) -> Logits:
    toy = toy_paged_engine if llm.config.layout == "paged" else toy_engine
    return lambda tokens: toy.toy_logits(llm.config, tokens)


def log_softmax(logits: np.ndarray) -> np.ndarray:
    wide = logits.astype(np.float64)
    return wide - wide.max() - np.log(np.exp(wide - wide.max()).sum())


OPTIONS: list[dict[str, Any]] = [
    {"presence_penalty": 2.0},
    {"frequency_penalty": 0.6, "repetition_penalty": 1.2},
    {"logit_bias": {5: 40.0, 6: 40.0}, "frequency_penalty": 2.0},
    {"allowed_token_ids": [3, 5, 8]},
    {"allowed_token_ids": [3, 5], "bad_words": ["!"]},
    {"logits_processors": lambda tokens, logits: logits - 9 * (np.arange(VOCAB) % 3 == len(tokens) % 3)},
    {"min_tokens": 4, "stop_token_ids": list(range(0, VOCAB, 2))},
]


@pytest.mark.parametrize("prompts", [1, 5])
def test_greedy_tokens_are_those_of_edited_logits(llm: LLM, prompts: int) -> None:
    assert llm.tokenizer is not None
    rng = np.random.default_rng(prompts)
    given = [rng.integers(2, 40, rng.integers(1, 30)).tolist() for _ in range(prompts)]
    for options in OPTIONS:
        params = SamplingParams(max_new_tokens=8, **options)
        words = [llm.tokenizer.encode(text, False) for word in params.bad_words for text in (word, f" {word}")]
        stops = (*params.stop_token_ids, VOCAB - 1)
        for prompt, answer in zip(given, llm.generate(given, params), strict=True):
            expected = best_continuation(logits_of(llm), params, prompt, 8, stop_ids=stops, bad_words=words)
            ends = [i for i, token in enumerate(expected) if token in stops and i >= params.min_tokens]
            assert list(answer.token_ids) == expected[: ends[0] + 1 if ends else 8]


def test_log_probabilities_of_the_prompt(llm: LLM) -> None:
    rng = np.random.default_rng(3)
    prompts = [rng.integers(2, 40, length).tolist() for length in (31, 1, 2, 17)]
    prompts.append([*prompts[0][:20], 3])  # begins like another
    params = SamplingParams(max_new_tokens=4, prompt_logprobs=2, ignore_eos=True)
    for _ in range(2):  # the second time, a prefix cache knows all of them
        for prompt, answer in zip(prompts, llm.generate(prompts, params), strict=True):
            assert answer.prompt_logprobs is not None and len(answer.prompt_logprobs) == len(prompt)
            assert answer.prompt_logprobs[0] is None and answer.cached_tokens == 0
            for place, found in enumerate(answer.prompt_logprobs[1:], 1):
                expected = log_softmax(logits_of(llm)(prompt[:place]))
                assert found is not None and found.token_id == prompt[place]
                assert found.logprob == pytest.approx(expected[prompt[place]], abs=1e-5)
                best = np.argsort(-expected, kind="stable")[:2]
                assert [token for token, _ in found.top] == best.tolist()
            toy = best_continuation(logits_of(llm), SamplingParams(), prompt, 4)
            assert list(answer.token_ids) == toy
    assert llm.generate(prompts[0], max_new_tokens=1).prompt_logprobs is None


def test_prompt_log_probabilities_leave_a_cached_prefix_alone(tmp_path: Path) -> None:
    with toy_llm(tmp_path) as llm:
        prompt = list(range(2, 30))
        llm.cache_prefix(prompt[:20])
        assert llm.generate(prompt, max_new_tokens=1).cached_tokens == 20
        answer = llm.generate(prompt, SamplingParams(prompt_logprobs=0), max_new_tokens=1)
        assert answer.cached_tokens == 0 and len(answer.prompt_logprobs) == 28


def test_answers_to_one_prompt_share_its_log_probabilities(tmp_path: Path) -> None:
    with paged_llm(tmp_path, memory=11_000) as llm:
        params = SamplingParams(temperature=1.0, seed=1, n=6, prompt_logprobs=0, max_new_tokens=9)
        answer = llm.generate(list(range(2, 32)), params)
        assert all(other.prompt_logprobs == answer.prompt_logprobs for other in answer.alternatives)
        llm.loop.scheduler.check_integrity()


def test_a_prompt_may_share_a_step_with_draft_tokens(tmp_path: Path) -> None:
    with paged_llm(tmp_path, speculation=SpeculationSettings(3, adaptive=False)) as llm:
        # Few tokens are allowed, so that what followed before is often right again.
        few = SamplingParams(allowed_token_ids=[3, 5], max_new_tokens=40)
        expected = best_continuation(logits_of(llm), few, [3, 5], 40)
        stream = llm.generate([3, 5], few, stream=True)
        tokens = [token for _ in range(8) for token in next(stream).token_ids]
        for length in (9, 13, 30):
            prompt = list(range(2, 2 + length))
            answer = llm.generate(prompt, SamplingParams(prompt_logprobs=0), max_new_tokens=3)
            assert list(answer.token_ids) == best_continuation(logits_of(llm), SamplingParams(), prompt, 3)
            for place, found in enumerate(answer.prompt_logprobs[1:], 1):
                expected_one = log_softmax(logits_of(llm)(prompt[:place]))[prompt[place]]
                assert found is not None and found.logprob == pytest.approx(expected_one, abs=1e-5)
        tokens += [token for piece in stream for token in piece.token_ids]
        assert tokens == expected
        assert llm.loop.speculation is not None and llm.loop.speculation.accepted > 5


def test_one_step_gives_few_logits_of_prompts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hybridge.runtime.serving.loop_memory.PROMPT_LOGITS_BYTES", 7 * 4 * VOCAB)
    with paged_llm(tmp_path) as llm:
        given, step = [], llm.engine.step
        monkeypatch.setattr(
            llm.engine, "step", lambda inputs: (given.append(inputs.logits_indices.size), step(inputs))[1]
        )
        prompts = [list(range(2, 40))] * 4
        answers = llm.generate(prompts, SamplingParams(prompt_logprobs=0), max_new_tokens=2)
        assert len({answer.prompt_logprobs for answer in answers}) == 1
        # Beside the limit: a token of each row, so that all advance, and those that choose tokens.
        assert max(given) <= 7 + 2 * 4 and sum(given) >= 4 * 38


def test_score_is_the_log_probability_of_the_continuation(llm: LLM) -> None:
    prompt, after = [3, 4, 5, 6, 7], [9, 2, 30]
    score = llm.score(prompt, after)
    whole = prompt + after
    expected = [log_softmax(logits_of(llm)(whole[:i]))[whole[i]] for i in range(1, len(whole))]
    assert score.token_ids == (9, 2, 30)
    np.testing.assert_allclose(score.logprobs, expected[4:], atol=1e-5)
    assert score.total == pytest.approx(sum(expected[4:]), abs=1e-4) and not score.is_greedy
    np.testing.assert_allclose(llm.score(prompt).logprobs, expected[:4], atol=1e-5)
    assert llm.score([5]).logprobs == ()
    greedy = best_continuation(logits_of(llm), SamplingParams(), prompt, 3)
    both = llm.score([prompt, prompt], [greedy, after])
    assert [each.is_greedy for each in both] == [True, False] and both[1] == score


def test_a_text_is_scored_behind_its_prompt(tmp_path: Path) -> None:
    with toy_llm(tmp_path) as llm:
        assert llm.tokenizer is not None
        before, whole = llm.tokenizer.encode("hello"), llm.tokenizer.encode("hello world")
        assert llm.score("hello", " world").token_ids == tuple(whole[len(before) :])
        assert llm.score(before, " world").token_ids == tuple(llm.tokenizer.encode(" world", False))
        wrong: tuple[Any, ...] = (("a", ""), ("a", []), (["a", "b"], ["c"]), (["a", "b"], "cd"), ([1] * 60, [1] * 60))
        for arguments in wrong:
            with pytest.raises(RequestError, match=r"continuation|at most 96 tokens"):
                llm.score(*arguments)


def test_stop_texts_and_the_shortest_answer(llm: LLM) -> None:
    assert llm.tokenizer is not None
    tokens = llm.generate([7, 7], max_new_tokens=12).token_ids
    text = llm.tokenizer.decode(tokens)
    stop = text[3:5]
    assert stop
    plain = llm.generate([7, 7], SamplingParams(stop=stop), max_new_tokens=12)
    shown = llm.generate([7, 7], SamplingParams(stop=stop, include_stop_str_in_output=True), max_new_tokens=12)
    assert (plain.text, shown.text) == (text[: text.index(stop)], text[: text.index(stop) + len(stop)])
    assert plain.token_ids == shown.token_ids and plain.stopped_by == shown.stopped_by == stop
    late = llm.generate([7, 7], SamplingParams(stop=stop, min_tokens=12), max_new_tokens=12)
    assert (late.token_ids, late.finish_reason, late.text) == (tokens, "length", text)
    ended = llm.generate([7, 7], SamplingParams(stop_token_ids=tokens[2:3], include_stop_str_in_output=True))
    assert ended.text == llm.tokenizer.decode(tokens[:3])


def test_no_stop_token_ends_too_short_an_answer(llm: LLM) -> None:
    force = lambda tokens, logits: np.where(np.arange(VOCAB) == 9, np.float32(0), -np.inf).astype(np.float32)  # noqa: E731
    params = SamplingParams(stop_token_ids=9, min_tokens=3, logits_processors=force)
    answer = llm.generate([1], params, max_new_tokens=8)
    assert (answer.token_ids, answer.finish_reason) == ((9,) * 4, "stop")


def test_names_of_vllm_mean_the_same(llm: LLM) -> None:
    expected = llm.generate([5, 6], max_new_tokens=3).token_ids
    assert llm.generate([5, 6], sampling_params=SamplingParams(max_tokens=3)).token_ids == expected
    assert llm.generate(prompt_token_ids=[5, 6], max_tokens=3).token_ids == expected
    assert [a.token_ids for a in llm.generate(prompt_token_ids=[[5, 6]], max_tokens=3)] == [expected]
    assert llm.generate({"prompt_token_ids": [5, 6]}, max_tokens=3).token_ids == expected
    assert llm.generate([{"prompt": "a"}], max_tokens=3)[0] == _timeless(llm.generate("a", max_tokens=3), llm, "a")
    torch = pytest.importorskip("torch", reason="tensors are of torch")
    assert llm.generate(torch.tensor([5, 6]), max_tokens=3).token_ids == expected
    assert [a.token_ids for a in llm.generate(torch.tensor([[5, 6]]), max_tokens=3)] == [expected]
    assert [a.token_ids for a in llm.generate([torch.tensor([5, 6])], max_tokens=3)] == [expected]
    assert llm.generate([torch.tensor(5), torch.tensor(6)], max_tokens=3).token_ids == expected


def _timeless(generation: Any, llm: LLM, prompt: str) -> Any:
    """One that equals another whatever their times."""

    class Same:
        def __eq__(self, other: Any) -> bool:
            return (other.text, other.token_ids) == (generation.text, generation.token_ids)

    return Same()


@pytest.mark.parametrize(
    ("arguments", "options", "words"),
    [
        (([1],), {"temperature": 1.0}, r"temperature: expected an argument .*pass SamplingParams\(temperature="),
        (([1],), {"best_of": 2}, "best_of: .* use n of SamplingParams"),
        (([1],), {"use_tqdm": False}, "use_tqdm: .* leave it out"),
        (([1],), {"max_tokens": 3, "max_new_tokens": 4}, "max_tokens: expected it alone, found max_new_tokens too"),
        (([1],), {"prompt_token_ids": [2]}, "prompt_token_ids: expected it alone, found a prompt too"),
        ((), {}, "prompt: expected text, token ids or a list of them, found NoneType"),
        ((np.zeros((1, 1, 1), int),), {}, "prompt: expected an array of 1 axis"),
        (([[1], []],), {}, "prompt 1: expected at least one token id, found none"),
        ((["a", []],), {}, "prompt 1: expected at least one token id, found none"),
        ((np.zeros(0, int),), {}, "prompt: expected at least one token id, found none"),
        (([1], SamplingParams(allowed_token_ids=[VOCAB])), {}, f"allowed_token_ids: .* to {VOCAB - 1}, found {VOCAB}"),
        (([1], SamplingParams(logit_bias={VOCAB: 1})), {}, f"logit_bias: .* to {VOCAB - 1}, found {VOCAB}"),
        (([1],), {"priority": [1, 2]}, "priority: expected an integer, or a list of 1, found 2"),
        (([1],), {"priority": "high"}, "priority: expected an integer"),
        (([1],), {"namespace": 3}, "namespace: expected a text"),
        (([1],), {"namespace": "x" * 1025}, "namespace: expected a text of at most 1024 characters, found 1025"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, arguments: tuple, options: dict[str, Any], words: str) -> None:
    with toy_llm(tmp_path) as llm, pytest.raises(RequestError, match=words):
        llm.generate(*arguments, **options)


def test_a_reset_spares_the_prefixes_of_a_dense_artifact_and_namespaces_share_none(tmp_path: Path) -> None:
    with toy_llm(tmp_path) as llm:
        llm.cache_prefix([1, 2], namespace="a")
        llm.reset_prefix_cache()
        for namespace, cached in (("a", 2), ("", 0)):
            assert llm.generate([1, 2, 3], max_new_tokens=1, namespace=namespace).cached_tokens == cached


def test_urgent_prompts_of_a_list_go_first(tmp_path: Path) -> None:
    with paged_llm(tmp_path, max_rows=1, policy=Priority()) as llm:
        order = [
            piece.index
            for piece in llm.generate([[3], [4], [5]], max_new_tokens=2, stream=True, priority=[2, 0, 1])
            if piece.generation is not None
        ]
        assert order == [1, 2, 0]


@pytest.mark.parametrize("kind", ["radix", "blocks"])
def test_namespaces_share_nothing_and_a_reset_forgets(tmp_path: Path, kind: str) -> None:
    layers = HYBRID if kind == "radix" else ("attention", "attention")
    with paged_llm(tmp_path, layers, prefix_cache=kind) as llm:
        prompt = list(range(2, 30))

        def cached(namespace: str = "") -> int:
            return llm.generate(prompt, max_new_tokens=2, namespace=namespace).cached_tokens

        assert cached() == 0 and cached() > 20
        assert cached("a") == 0 and cached("a") > 20
        pinned = llm.cache_prefix(prompt[:10], "first", "a") if kind == "radix" else None
        # A running request continues.
        stream = llm.generate(prompt[:-1], max_new_tokens=6, stream=True)
        begun = [next(stream)]
        llm.reset_prefix_cache()
        llm.loop.scheduler.check_integrity()
        answer = [*begun, *stream][-1].generation
        assert answer is not None
        assert list(answer.token_ids) == toy_paged_engine.toy_greedy(llm.config, prompt[:-1], 6)
        llm.reset_prefix_cache()
        assert cached("a") == (pinned.length if pinned else 0) and cached() == 0
        llm.loop.scheduler.check_integrity()


def test_a_reset_forgets_what_host_memory_keeps(tmp_path: Path) -> None:
    cache = PrefixCacheSettings("radix", host_bytes=1 << 20)
    with paged_llm(tmp_path, memory=11_000, prefix_cache=cache) as llm:
        for first in range(2, 26):
            llm.generate([first, *range(30)], max_new_tokens=2)
        assert llm.prefix_cache_report().host_bytes > 0
        llm.reset_prefix_cache()
        report = llm.prefix_cache_report()
        assert (report.host_bytes, report.nodes, report.states) == (0, 0, 0)
        assert llm.generate([2, *range(30)], max_new_tokens=1).cached_tokens == 0
        llm.loop.scheduler.check_integrity()


def test_a_request_of_too_many_answers_is_refused_at_once() -> None:
    with pytest.raises(RequestError, match="n: expected an integer from 1 to 128, found 1099511627776"):
        SamplingParams(n=2**40)


def ragged(tokens: Any, logits: np.ndarray) -> Any:
    return logits if len(tokens) < 6 else [[1.0], [2.0, 3.0]]


def interrupting(tokens: Any, logits: np.ndarray) -> np.ndarray:
    if len(tokens) == 6:
        raise KeyboardInterrupt
    return logits


@pytest.mark.parametrize(
    ("process", "expected", "words"),
    [(ragged, RequestError, "found no array"), (interrupting, KeyboardInterrupt, None)],
    ids=["ragged", "interrupting"],
)
def test_a_step_that_a_processor_breaks_gives_no_other_request_wrong_text(
    llm: LLM, process: Any, expected: type[BaseException], words: str | None
) -> None:
    """The text of the others is right, or they end with an error; later requests are right."""
    alone = llm.generate([5, 6, 7], max_new_tokens=10)
    stream = llm.generate([5, 6, 7], max_new_tokens=10, stream=True)
    pieces = [next(stream)]
    with pytest.raises(expected, match=words):
        llm.generate([1, 2, 3], SamplingParams(max_new_tokens=8, logits_processors=[process], ignore_eos=True))
    try:
        pieces += stream
    except EngineError as error:
        assert expected is KeyboardInterrupt and "interrupted" in str(error)
    else:
        assert "".join(piece.text for piece in pieces) == alone.text
    assert llm.generate([5, 6, 7], max_new_tokens=10).text == alone.text
