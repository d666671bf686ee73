"""AsyncLLM: tasks share one engine, stream their tokens and are told of failed steps."""

import asyncio
import threading

import numpy as np
import pytest

from hybridge.artifact.errors import EngineError, RequestError
from hybridge.runtime.sampling import SamplingParams
from hybridge.runtime.scheduler import Priority
from hybridge.runtime.serving.settings import ServingSettings
from tests.runtime.async_llm.running import RADIX, run
from tests.runtime.generation.toy_llm import VOCAB
from tests.runtime.toy_paged_engine import toy_greedy, toy_logits


def test_concurrent_tasks_get_the_tokens_each_gets_alone(tmp_path, engine):
    prompts = [[seed, 2 * seed + 1, 5] * (seed + 1) for seed in range(12)]

    async def work(llm):
        return await asyncio.gather(*(llm.generate(prompt, max_new_tokens=15) for prompt in prompts))

    for prompt, answer in zip(prompts, run(tmp_path, engine, work), strict=True):
        assert list(answer.token_ids) == toy_greedy(engine.config, prompt, 15)
        assert answer.prompt_token_ids == tuple(prompt) and answer.timings.new_tokens == len(answer.token_ids)


def test_the_pieces_of_a_stream_join_to_its_result(tmp_path, engine):
    async def work(llm):
        pieces = [piece async for piece in llm.add("abc", max_new_tokens=6)]
        return pieces, await llm.generate("abc", max_new_tokens=6)

    pieces, generation = run(tmp_path, engine, work)
    assert (pieces[-1].generation.text, pieces[-1].generation.token_ids) == (generation.text, generation.token_ids)
    assert "".join(piece.text for piece in pieces) == generation.text
    assert [token for piece in pieces for token in piece.token_ids] == list(generation.token_ids)


def test_a_failed_step_fails_its_requests_only(tmp_path, engine):
    engine.fail_at = {1}

    async def work(llm):
        failed = llm.add([1, 2], max_new_tokens=4)
        with pytest.raises(EngineError, match="told to fail"):
            await failed.result()
        return await llm.generate([3], max_new_tokens=4)

    assert list(run(tmp_path, engine, work).token_ids) == toy_greedy(engine.config, [3], 4)


def test_bad_requests_are_refused(tmp_path, engine):
    async def work(llm):
        for bad, message in (
            (llm.add([VOCAB]), "expected token ids"),
            (llm.add([1], SamplingParams(beam_width=9, n=2)), "the pools can hold"),
        ):
            with pytest.raises(RequestError, match=message):
                await bad.result()
        for ids in ([1] * 1000, np.ones(1000, np.int64)):
            with pytest.raises(RequestError, match=r"expected at most .* found 1000"):
                llm.add(ids)
        with pytest.raises(RequestError, match="max_new_tokens: expected"):
            llm.add([1], max_new_tokens=0)
        with pytest.raises(RequestError, match="expected one prompt, found several"):
            llm.add([[1], [2]])
        with pytest.raises(RequestError, match="priority: expected an integer"):
            llm.add([1], priority=0.5)
        with pytest.raises(RequestError, match="prompt: expected at least one token id, found none"):
            await llm.generate([])
        with pytest.raises(RequestError, match=r"temperature: .*pass SamplingParams"):
            llm.add([1], temperature=1)

    run(tmp_path, engine, work)


def test_urgent_requests_run_first(tmp_path, engine, monkeypatch):
    """Three requests wait while the only row is busy."""
    settings = ServingSettings(block_size=4, memory_bytes=20_000, max_rows=1, policy=Priority())
    started, may_finish, step = threading.Event(), threading.Event(), engine.step

    def blocked_step(inputs):
        started.set()
        assert may_finish.wait(30)
        return step(inputs)

    monkeypatch.setattr(engine, "step", blocked_step)

    async def work(llm):
        order = []

        async def one(name, priority):
            await llm.generate([5], max_new_tokens=6, priority=priority)
            order.append(name)

        first = asyncio.create_task(llm.generate([7], max_new_tokens=2))
        await asyncio.to_thread(started.wait, 30)
        tasks = [asyncio.create_task(one(*item)) for item in (("lazy", 2), ("urgent", 0), ("normal", 1))]
        await asyncio.sleep(0.2)
        may_finish.set()
        await asyncio.gather(first, *tasks)
        return order

    assert run(tmp_path, engine, work, settings) == ["urgent", "normal", "lazy"]


def test_vllms_names_of_arguments(tmp_path, engine):
    prompt = list(range(2, 30))

    async def work(llm):
        return await llm.generate(prompt_token_ids=prompt, sampling_params=SamplingParams(max_tokens=3))

    assert run(tmp_path, engine, work).token_ids == tuple(toy_greedy(engine.config, prompt, 3))


def test_the_prefix_cache_can_be_reset(tmp_path, engine):
    prompt = list(range(2, 30))

    async def work(llm):
        await llm.generate(prompt, max_new_tokens=3)
        assert (await llm.generate(prompt, max_new_tokens=1)).cached_tokens > 20
        await llm.reset_prefix_cache()
        assert (await llm.generate(prompt, max_new_tokens=1)).cached_tokens == 0

    run(tmp_path, engine, work, RADIX)


def test_scores(tmp_path, engine):
    async def work(llm):
        score = await llm.score("hello", " world")
        whole = llm.tokenizer.encode("hello world")
        first = len(whole) - len(score.token_ids)
        assert score.token_ids == tuple(whole[first:]) and first == len(llm.tokenizer.encode("hello"))
        for position, logprob in enumerate(score.logprobs, first):
            logits = toy_logits(engine.config, whole[:position]).astype(np.float64)
            assert logprob == pytest.approx(logits[whole[position]] - np.log(np.exp(logits).sum()), abs=1e-5)
        answers = await llm.generate([7], SamplingParams(prompt_logprobs=1, n=2), max_new_tokens=2)
        assert answers.prompt_logprobs == (None,) == answers.alternatives[0].prompt_logprobs
        return llm

    llm = run(tmp_path, engine, work, RADIX)

    async def after_closing():
        await llm.score("a", "b")

    with pytest.raises(RequestError, match="expected an open AsyncLLM, found a closed one"):
        asyncio.run(after_closing())


def test_a_failing_logits_processor_fails_its_request_only(tmp_path, engine):
    async def work(llm):
        bad = llm.add([1], SamplingParams(logits_processors=lambda tokens, logits: None))
        good = llm.add([1], max_new_tokens=3)
        with pytest.raises(RequestError, match=r"logits_processors\[0\]: expected logits"):
            await bad.result()
        return await good.result()

    assert run(tmp_path, engine, work).token_ids == tuple(toy_greedy(engine.config, [1], 3))
