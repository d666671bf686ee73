"""The generation loop: every request gets the tokens that it would get alone, whatever runs with it."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hybridge.runtime.engines.capacity as capacity
from hybridge.artifact.errors import EngineError
from hybridge.runtime.llm import LLM
from hybridge.runtime.sampling import SamplingParams
from tests.runtime.generation.toy_llm import VOCAB, engine_of, greedy, toy_llm
from tests.runtime.toy_engine import HYBRID, PURE_ATTENTION, PURE_MAMBA
from tests.support.effort import examples

prompt_ids = st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=20)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("toy")


@settings(max_examples=examples(40), deadline=None)
@given(
    prompts=st.lists(prompt_ids, min_size=1, max_size=9),
    data=st.data(),
    layers=st.sampled_from([HYBRID, PURE_ATTENTION, PURE_MAMBA]),
    all_logits=st.booleans(),
    max_step_tokens=st.sampled_from([1, 6, None]),
    max_batch=st.integers(1, 4),
)
def test_any_mix_of_requests_equals_each_alone(
    folder: Path,
    prompts: list[list[int]],
    data: st.DataObject,
    layers: tuple[str, ...],
    all_logits: bool,
    max_step_tokens: int | None,
    max_batch: int,
) -> None:
    counts = [data.draw(st.integers(1, 12)) for _ in prompts]
    eos = tuple(range(0, VOCAB, 9))
    llm = toy_llm(folder, layers, 96, max_batch, eos, all_logits, max_step_tokens)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(capacity, "FIRST_CAPACITY", 4)
        generations = llm.generate(prompts, [SamplingParams(max_new_tokens=n) for n in counts])
    for prompt, count, generation in zip(prompts, counts, generations, strict=True):
        assert generation.token_ids == greedy(llm, prompt, count)
        assert generation.prompt_token_ids == tuple(prompt)
        stopped = generation.token_ids[-1] in llm.eos_token_ids
        assert generation.finish_reason == ("stop" if stopped else "length")
        assert generation.stopped_by == (generation.token_ids[-1] if stopped else None)


def test_sampled_requests_repeat_alone_and_in_a_batch(folder: Path) -> None:
    llm = toy_llm(folder)
    prompts = [[5, 6, 7], [8], [9, 10], [5, 6, 7], [11]]
    params = [SamplingParams(temperature=1.0, seed=i, max_new_tokens=6 + i) for i in range(5)]
    together = [g.token_ids for g in llm.generate(prompts, params)]
    alone = [llm.generate(p, s).token_ids for p, s in zip(prompts, params, strict=True)]
    assert together == alone
    assert together[0] != together[3][:6]


def test_waiting_prompts_take_the_rows_that_become_free(folder: Path) -> None:
    llm = toy_llm(folder, max_batch=2)
    lengths = [2, 9, 3, 3]
    generations = llm.generate([[i] for i in range(4)], [SamplingParams(max_new_tokens=n) for n in lengths])
    assert [len(g.token_ids) for g in generations] == lengths
    # Alone, one after another, they would take 17 steps; in fixed waves of two 12. A free row is filled at once.
    assert llm.loop.steps == 9 and max(rows for rows, _ in engine_of(llm).steps) == 2


def test_the_batch_shrinks_as_rows_finish(folder: Path) -> None:
    llm = toy_llm(folder)
    llm.generate([[1], [2], [3], [4]], [SamplingParams(max_new_tokens=n) for n in (1, 3, 12, 12)])
    # When the same rows have decoded for some steps, others are given up.
    assert [rows for rows, _ in engine_of(llm).steps] == [4] * 7 + [2] * 5


def test_the_cache_grows_with_the_tokens_present(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capacity, "FIRST_CAPACITY", 8)
    llm = toy_llm(folder)
    capacities: list[int] = []
    step = engine_of(llm).step
    monkeypatch.setattr(
        engine_of(llm), "step", lambda inputs, states: (capacities.append(states.max_seq), step(inputs, states))[1]
    )
    llm.generate([1, 2, 3], max_new_tokens=32)
    assert sorted(set(capacities)) == [8, 16, 32, 64]
    # 3 + 31 tokens are cached at the end: 33 and 34 need the last size.
    assert capacities.count(64) == 2


def test_a_stream_may_be_paused_while_another_is_read(folder: Path) -> None:
    llm = toy_llm(folder)
    first = llm.generate([[1, 2], [3]], max_new_tokens=6, stream=True)
    second = llm.generate([4], max_new_tokens=12, stream=True)
    tokens: list[list[int]] = [[], [], []]
    for piece, other in zip(first, second, strict=True):
        tokens[piece.index] += piece.token_ids
        tokens[2] += other.token_ids
        llm.generate([7, 7], max_new_tokens=1)
    for prompt, found in zip(([1, 2], [3], [4]), tokens, strict=True):
        assert tuple(found) == greedy(llm, prompt, len(found)) and len(found) >= 6
    abandoned = llm.generate([5], max_new_tokens=6, stream=True)
    next(iter(abandoned))
    del abandoned
    assert llm.generate([5], max_new_tokens=6).token_ids == greedy(llm, [5], 6)


def test_an_engine_failure_reaches_the_caller_and_the_next_call_works(folder: Path) -> None:
    llm = toy_llm(folder)
    engine_of(llm).fail_at_step = 3
    with pytest.raises(EngineError, match="told to fail"):
        llm.generate([1], max_new_tokens=9)
    engine_of(llm).fail_at_step = None
    assert llm.generate([1], max_new_tokens=9).token_ids == greedy(llm, [1], 9)


def test_logits_of_a_step_are_not_used_after_it(folder: Path) -> None:
    # The toy engine poisons the array that it returned at its next step.
    llm = toy_llm(folder, max_step_tokens=2)
    generation = llm.generate([[1, 2, 3, 4, 5], [6]], SamplingParams(max_new_tokens=2, logprobs=2))[1]
    assert generation.logprobs is not None
    assert all(np.isfinite(entry.logprob) for entry in generation.logprobs)


def test_prefix_is_used_for_exactly_its_tokens(folder: Path) -> None:
    llm: LLM = toy_llm(folder)
    prefix = llm.cache_prefix([1, 2, 3])
    longer = llm.cache_prefix([1, 2, 3, 4])
    assert (prefix.length, longer.length) == (3, 4)
    # The last token of a prompt is always computed.
    cases = {(1, 2, 3): 2, (1, 2, 3, 4): 3, (1, 2, 3, 4, 5): 4, (1, 2, 3, 9): 3, (1, 2): 0, (9, 1, 2, 3): 0}
    for prompt, cached in cases.items():
        generation = llm.generate(prompt, max_new_tokens=5)
        assert (generation.cached_tokens, generation.token_ids) == (cached, greedy(llm, prompt, 5))
    together = llm.generate([list(prompt) for prompt in cases], max_new_tokens=5)
    assert [g.token_ids for g in together] == [greedy(llm, prompt, 5) for prompt in cases]
    assert [g.cached_tokens for g in together] == list(cases.values())


def test_a_prompt_equal_to_the_prefix_computes_one_token(folder: Path) -> None:
    llm = toy_llm(folder)
    llm.cache_prefix([1, 2, 3])
    before = len(engine_of(llm).steps)
    assert llm.generate([1, 2, 3], max_new_tokens=1).token_ids == greedy(llm, [1, 2, 3], 1)
    assert engine_of(llm).steps[before:] == [(1, 1)]


def test_prefixes_are_shared_dropped_and_counted(folder: Path) -> None:
    llm = toy_llm(folder)
    prefix = llm.cache_prefix([1, 2, 3])
    steps = len(engine_of(llm).steps)
    assert llm.cache_prefix([1, 2, 3]) is prefix and len(engine_of(llm).steps) == steps
    llm.cache_prefix([1, 2, 3, 4, 5])
    assert engine_of(llm).steps[steps:] == [(1, 1), (1, 1)]
    llm.drop_prefix(prefix)
    llm.reset_prefix_cache()
    assert llm.generate([1, 2, 3, 4], max_new_tokens=1).cached_tokens == 0
    assert llm.generate([1, 2, 3, 4, 5, 6], max_new_tokens=1).cached_tokens == 5
