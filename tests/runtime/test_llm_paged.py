"""LLM on a paged engine: batches, streams, alternatives, beams and failed steps."""

import pytest

from hybridge.artifact.errors import EngineError, RequestError
from hybridge.runtime.llm import LLM
from hybridge.runtime.sampling import SamplingParams
from hybridge.runtime.serving.settings import ServingSettings
from tests.runtime.generation.toy_llm import paged_engine
from tests.runtime.toy_paged_engine import toy_greedy


@pytest.fixture
def engine(tmp_path):
    return paged_engine(tmp_path)


@pytest.fixture
def llm(tmp_path, engine):
    with LLM(tmp_path, engine, serving=ServingSettings(block_size=4, memory_bytes=20_000)) as llm:
        yield llm


def test_prompts_of_a_batch_get_the_tokens_each_gets_alone(llm, engine):
    prompts = [[1, 2, 3], [4] * 30, [9]]
    for prompt, answer in zip(prompts, llm.generate(prompts, max_new_tokens=9), strict=True):
        assert list(answer.token_ids) == toy_greedy(engine.config, prompt, 9)
    assert llm.max_batch_size == 8 and not llm.loop.busy


def test_streams_take_turns_and_may_be_closed_early(llm, engine):
    first = llm.generate([[1], [2]], max_new_tokens=8, stream=True)
    second = llm.generate([3], max_new_tokens=8, stream=True)
    unread = llm.generate([4], stream=True)
    next(first)
    tokens = [token for piece in second for token in piece.token_ids]
    assert tokens == toy_greedy(engine.config, [3], 8)
    first.close(), unread.close()
    assert not llm.loop.busy and not llm.loop.scheduler.sequences


def test_alternatives_and_beams(llm, engine):
    answer = llm.generate([7, 7], SamplingParams(temperature=1.0, seed=3, n=3, max_new_tokens=5))
    alone = [llm.generate([7, 7], SamplingParams(temperature=1.0, seed=3 + i, max_new_tokens=5)) for i in range(3)]
    assert [answer.token_ids, *(other.token_ids for other in answer.alternatives)] == [a.token_ids for a in alone]
    best = llm.generate([7, 7], SamplingParams(beam_width=4, n=2, max_new_tokens=5))
    assert best.score >= best.alternatives[0].score and len(best.alternatives) == 1


def test_a_failed_step_is_reported_and_the_next_request_runs(llm, engine):
    engine.fail_at = {2}
    with pytest.raises(EngineError, match="told to fail"):
        llm.generate([[1], [2]], max_new_tokens=5)
    assert list(llm.generate([1], max_new_tokens=5).token_ids) == toy_greedy(engine.config, [1], 5)


def test_cache_prefix_needs_a_radix_tree(llm):
    with pytest.raises(RequestError, match="expected a prefix cache of kind 'radix'"):
        llm.cache_prefix([1, 2])
