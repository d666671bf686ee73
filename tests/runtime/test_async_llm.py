"""Tasks share one engine: each gets its own pieces, may leave at any time, and hears of failures."""

import asyncio
import contextlib
import threading
import time

import numpy as np
import pytest

from hybridge.artifact.errors import EngineError, RequestError
from hybridge.runtime.async_llm import AsyncLLM
from hybridge.runtime.llm import LLM
from hybridge.runtime.sampling import SamplingParams
from hybridge.runtime.scheduler import Priority
from hybridge.runtime.serving.pinned import read_prefixes
from hybridge.runtime.serving.settings import ServingSettings
from hybridge.runtime.text import Tokenizer
from tests.runtime.generation.toy_llm import VOCAB
from tests.runtime.text.tokenizer_files import byte_level_tokenizer
from tests.runtime.toy_engine import HYBRID
from tests.runtime.toy_paged_engine import ToyPagedEngine, paged_config, toy_greedy, toy_logits

SETTINGS = ServingSettings(block_size=4, memory_bytes=20_000)


@pytest.fixture
def engine(tmp_path):
    byte_level_tokenizer(tmp_path)
    return ToyPagedEngine(paged_config(HYBRID, vocab=VOCAB, eos=(VOCAB - 1,)), max_tokens=32, max_rows=8)


@pytest.fixture
def llm(tmp_path, engine):
    with LLM(tmp_path, engine, serving=SETTINGS) as llm:
        yield llm


def run(tmp_path, engine, work, settings=SETTINGS):
    async def main():
        async with AsyncLLM(tmp_path, engine, serving=settings) as llm:
            result = await asyncio.wait_for(work(llm), 60)
            while llm.loop.busy:
                await asyncio.sleep(0.01)
            return result

    result = asyncio.run(main())
    assert engine.closed
    return result


def test_tasks_get_what_each_gets_alone(tmp_path, engine):
    prompts = [[seed, 2 * seed + 1, 5] * (seed + 1) for seed in range(12)]

    async def work(llm):
        return await asyncio.gather(*(llm.generate(prompt, max_new_tokens=15) for prompt in prompts))

    for prompt, answer in zip(prompts, run(tmp_path, engine, work), strict=True):
        assert list(answer.token_ids) == toy_greedy(engine.config, prompt, 15)
        assert answer.prompt_token_ids == tuple(prompt) and answer.timings.new_tokens == len(answer.token_ids)


def test_pieces_come_as_they_are_made(tmp_path, engine):
    async def work(llm):
        pieces = [piece async for piece in llm.add("abc", max_new_tokens=6)]
        return pieces, pieces[-1].generation

    pieces, generation = run(tmp_path, engine, work)
    assert "".join(piece.text for piece in pieces) == generation.text
    assert [token for piece in pieces for token in piece.token_ids] == list(generation.token_ids)


def test_a_stream_may_be_cancelled_at_any_time(tmp_path, engine, monkeypatch):
    step = engine.step
    # Slower than the task that reads, however busy the machine.
    monkeypatch.setattr(engine, "step", lambda inputs: time.sleep(0.02) or step(inputs))

    async def work(llm):
        stream, other = llm.add([1] * 20, max_new_tokens=70), llm.add([2], max_new_tokens=5)
        seen = 0
        async for _ in stream:
            seen += 1
            if seen == 3:
                stream.cancel()
        at_once = llm.add([3], max_new_tokens=70)
        at_once.cancel()
        assert [piece async for piece in at_once] == []
        with pytest.raises(asyncio.CancelledError):
            await at_once.result()
        return seen, await other.result()

    seen, other = run(tmp_path, engine, work)
    assert 3 <= seen < 70
    assert list(other.token_ids) == toy_greedy(engine.config, [2], 5)


def test_a_task_that_is_cancelled_takes_its_request_along(tmp_path, engine):
    async def work(llm):
        task = asyncio.create_task(llm.generate([4] * 9, max_new_tokens=80))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(tmp_path, engine, work)


def test_a_failed_step_reaches_those_who_took_part(tmp_path, engine):
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

    run(tmp_path, engine, work)


def off_the_event_loop(function):
    def watched(*args, **options):
        assert threading.current_thread() is not threading.main_thread()
        return function(*args, **options)

    return watched


class WatchedIds(np.ndarray):
    tolist = off_the_event_loop(np.ndarray.tolist)


class WatchedMessage(dict):
    items = off_the_event_loop(dict.items)


class WatchedTokens(list):
    __iter__ = off_the_event_loop(list.__iter__)


def test_input_is_read_off_the_event_loop(tmp_path, engine, monkeypatch):
    (tmp_path / "chat_template.jinja").write_text("{{ messages[0].content }}{{ tools[0].name }}")
    prefixes = tmp_path / "prefixes.json"
    prefixes.write_text('{"prefixes": {"a": [1, 2, 3]}}')
    encode = Tokenizer.encode

    async def work(llm):
        ids = np.arange(1, 9).view(WatchedIds)
        answer = await llm.generate(ids, SamplingParams(bad_words=["ab"]), max_new_tokens=3)
        assert answer.prompt_token_ids == tuple(range(1, 9))
        messages = [WatchedMessage(role="user", content="he")]
        chat = llm.chat(messages, max_new_tokens=1, tools=[WatchedMessage(name="llo")])
        messages.clear()
        assert (await chat.result()).prompt_token_ids == tuple(encode(llm.tokenizer, "hello", False))
        await llm.score(ids, ids)
        assert [prefix.name for prefix in await llm.cache_prefixes(prefixes)] == ["a"]
        with pytest.raises(EngineError, match="the toy-paged engine cannot save its states"):
            await llm.save_session(tmp_path / "session", WatchedTokens([1, 2, 3]))
        with pytest.raises(RequestError, match="expected at most 65536 messages, found 65537"):
            llm.chat([WatchedMessage()] * 65537)

    monkeypatch.setattr(Tokenizer, "encode", off_the_event_loop(encode))
    monkeypatch.setattr("hybridge.runtime.async_llm.read_prefixes", off_the_event_loop(read_prefixes))
    run(tmp_path, engine, work, ServingSettings(block_size=4, memory_bytes=40_000, prefix_cache="radix"))


def test_texts_are_tokenized_beside_the_event_loop_and_in_order(tmp_path, engine, monkeypatch):
    go, encode, started = threading.Event(), Tokenizer.encode, []

    def encode_when_told(self, text, add_special_tokens=True):
        assert threading.current_thread() is not threading.main_thread()
        assert go.wait(30)
        return encode(self, text, add_special_tokens)

    async def work(llm):
        add = llm.loop.add
        monkeypatch.setattr(
            llm.loop, "add", lambda asked, at: started.append(asked.request.prompt_ids) or add(asked, at)
        )
        streams = [llm.add("ab", max_new_tokens=3), llm.add([7], max_new_tokens=3), llm.add("c", max_new_tokens=3)]
        await asyncio.sleep(0.05)
        assert not started
        go.set()
        answers = [await stream.result() for stream in streams]
        await llm.generate([8], max_new_tokens=1)
        return [answer.prompt_token_ids for answer in answers]

    monkeypatch.setattr(Tokenizer, "encode", encode_when_told)
    in_order = run(tmp_path, engine, work)
    assert started[:3] == in_order and in_order[1] == (7,) and started[3] == (8,)


def test_a_text_may_be_cancelled_while_it_is_tokenized(tmp_path, engine, monkeypatch):
    go, encode = threading.Event(), Tokenizer.encode
    monkeypatch.setattr(Tokenizer, "encode", lambda self, *rest: go.wait(30) and encode(self, *rest))

    async def work(llm):
        added, add = [], llm.loop.add
        monkeypatch.setattr(llm.loop, "add", lambda *rest: added.append(rest) or add(*rest))
        streams = [llm.add("ab", max_new_tokens=60) for _ in range(3)]
        streams[0].cancel()
        await streams[1].aclose()
        go.set()
        last = await streams[2].result()
        assert len(added) == 1
        with pytest.raises(asyncio.CancelledError):
            await streams[0].result()
        return last

    assert run(tmp_path, engine, work).text


def test_what_is_wrong_with_a_text_comes_out_of_the_stream(tmp_path, engine):
    (tmp_path / "chat_template.jinja").write_text("{{ raise_exception('no') }}")

    async def work(llm):
        for stream, message in (
            (llm.add("a" * 10_000_000), "expected at most .* tokens .max_seq_len., found more in a text of 10000000"),
            (llm.add("\ud800"), "valid Unicode"),
            (llm.chat("hello"), "refuses the conversation: no"),
        ):
            with pytest.raises(RequestError, match=message):
                await stream.result()
        with pytest.raises(RequestError, match="expected at least one message"):
            llm.chat([])
        with pytest.raises(RequestError, match="valid Unicode"):
            await llm.cache_prefix("\ud800")

    run(tmp_path, engine, work)


def test_closing_ends_a_text_that_waits(tmp_path, engine, monkeypatch):
    encode = Tokenizer.encode
    monkeypatch.setattr(Tokenizer, "encode", lambda self, *rest: time.sleep(0.1) or encode(self, *rest))

    async def main():
        llm = AsyncLLM(tmp_path, engine, serving=SETTINGS)
        streams = [llm.add("ab") for _ in range(3)]
        llm.close()
        for stream in streams:
            with pytest.raises(EngineError, match="has ended before the request"):
                await stream.result()
        with pytest.raises(RequestError, match="closed one"):
            llm.add("ab")

    asyncio.run(main())


def test_closing_ends_what_is_under_way(tmp_path, engine, monkeypatch):
    step = engine.step
    monkeypatch.setattr(engine, "step", lambda inputs: (time.sleep(0.02), step(inputs))[1])

    async def main():
        llm = AsyncLLM(tmp_path, engine, serving=SETTINGS)
        stream = llm.add([1], max_new_tokens=90)
        await anext(stream)
        llm.close()
        llm.close()
        with pytest.raises(EngineError, match="has ended before the request"):
            await stream.result()
        with pytest.raises(RequestError, match="closed one"):
            llm.add([1])
        stream.cancel()

    asyncio.run(main())


def test_urgent_requests_overtake(tmp_path, engine, monkeypatch):
    """Three requests wait while the only row is busy."""
    settings = ServingSettings(block_size=4, memory_bytes=20_000, max_rows=1, policy=Priority())
    busy, waiting, step = threading.Event(), threading.Event(), engine.step

    def held_step(inputs):
        busy.set()
        assert waiting.wait(30)
        return step(inputs)

    monkeypatch.setattr(engine, "step", held_step)

    async def work(llm):
        order = []

        async def one(name, priority):
            await llm.generate([5], max_new_tokens=6, priority=priority)
            order.append(name)

        first = asyncio.create_task(llm.generate([7], max_new_tokens=2))
        await asyncio.to_thread(busy.wait, 30)
        tasks = [asyncio.create_task(one(*item)) for item in (("lazy", 2), ("urgent", 0), ("normal", 1))]
        await asyncio.sleep(0.2)
        waiting.set()
        await asyncio.gather(first, *tasks)
        return order

    assert run(tmp_path, engine, work, settings) == ["urgent", "normal", "lazy"]


def test_llm_generates_on_a_paged_engine(llm, engine):
    prompts = [[1, 2, 3], [4] * 30, [9]]
    for prompt, answer in zip(prompts, llm.generate(prompts, max_new_tokens=9), strict=True):
        assert list(answer.token_ids) == toy_greedy(engine.config, prompt, 9)
    assert llm.max_batch_size == 8 and not llm.loop.busy


def test_llm_streams_take_turns_and_may_be_left(llm, engine):
    first = llm.generate([[1], [2]], max_new_tokens=8, stream=True)
    second = llm.generate([3], max_new_tokens=8, stream=True)
    never = llm.generate([4], stream=True)
    next(first)
    tokens = [token for piece in second for token in piece.token_ids]
    assert tokens == toy_greedy(engine.config, [3], 8)
    first.close(), never.close()
    assert not llm.loop.busy and not llm.loop.scheduler.sequences


def test_llm_gives_alternatives_and_beams(llm, engine):
    answer = llm.generate([7, 7], SamplingParams(temperature=1.0, seed=3, n=3, max_new_tokens=5))
    alone = [llm.generate([7, 7], SamplingParams(temperature=1.0, seed=3 + i, max_new_tokens=5)) for i in range(3)]
    assert [answer.token_ids, *(other.token_ids for other in answer.alternatives)] == [a.token_ids for a in alone]
    best = llm.generate([7, 7], SamplingParams(beam_width=4, n=2, max_new_tokens=5))
    assert best.score >= best.alternatives[0].score and len(best.alternatives) == 1


def test_llm_reports_a_failed_step(llm, engine):
    engine.fail_at = {2}
    with pytest.raises(EngineError, match="told to fail"):
        llm.generate([[1], [2]], max_new_tokens=5)
    assert list(llm.generate([1], max_new_tokens=5).token_ids) == toy_greedy(engine.config, [1], 5)


def test_llm_without_a_radix_tree_keeps_no_prefixes(llm):
    with pytest.raises(RequestError, match="expected a prefix cache of kind 'radix'"):
        llm.cache_prefix([1, 2])


@pytest.mark.parametrize("way", ["a generator", "a task"])
def test_whoever_leaves_early_ends_the_request(tmp_path, engine, monkeypatch, way):
    step = engine.step
    monkeypatch.setattr(engine, "step", lambda inputs: time.sleep(0.02) or step(inputs))

    async def texts(llm):
        async with contextlib.aclosing(llm.add([1] * 20, max_new_tokens=70)) as stream:
            async for piece in stream:
                yield piece.text

    async def first_of_generator(llm):
        async with contextlib.aclosing(texts(llm)) as pieces:
            return await anext(pieces)

    async def cancelled_task(llm):
        begun = asyncio.Event()

        async def read():
            async for _ in texts(llm):
                begun.set()

        task = asyncio.create_task(read())
        await begun.wait()
        task.cancel()
        await asyncio.wait([task])

    async def work(llm):
        await (first_of_generator if way == "a generator" else cancelled_task)(llm)
        while llm.loop.busy:
            await asyncio.sleep(0.01)
        return llm.loop.steps

    assert run(tmp_path, engine, work) < 40


def test_a_closed_stream_gives_nothing_more(tmp_path, engine):
    async def work(llm):
        stream, ended = llm.add([1, 2], max_new_tokens=4), llm.add([1, 2], max_new_tokens=4)
        await ended.result()
        await asyncio.sleep(0.05)
        for each in (stream, ended):
            await each.aclose()
            await each.aclose()
        with pytest.raises(asyncio.CancelledError):
            await stream.result()
        return [piece async for piece in stream] + [piece async for piece in ended]

    assert run(tmp_path, engine, work) == []


def test_scores_names_and_resets(tmp_path, engine):
    prompt = list(range(2, 30))

    async def work(llm):
        found = await llm.generate(prompt_token_ids=prompt, sampling_params=SamplingParams(max_tokens=3))
        assert found.token_ids == tuple(toy_greedy(engine.config, prompt, 3))
        assert (await llm.generate(prompt, max_new_tokens=1)).cached_tokens > 20
        await llm.reset_prefix_cache()
        assert (await llm.generate(prompt, max_new_tokens=1)).cached_tokens == 0
        score = await llm.score("hello", " world")
        whole = llm.tokenizer.encode("hello world")
        first = len(whole) - len(score.token_ids)
        assert score.token_ids == tuple(whole[first:]) and first == len(llm.tokenizer.encode("hello"))
        for place, logprob in enumerate(score.logprobs, first):
            logits = toy_logits(engine.config, whole[:place]).astype(np.float64)
            assert logprob == pytest.approx(logits[whole[place]] - np.log(np.exp(logits).sum()), abs=1e-5)
        answers = await llm.generate([7], SamplingParams(prompt_logprobs=1, n=2), max_new_tokens=2)
        assert answers.prompt_logprobs == (None,) == answers.alternatives[0].prompt_logprobs
        for arguments, words in (
            (([[1], [2]],), "expected one prompt, found several"),
            (([1], None, None, 0.5), "priority: expected an integer"),
        ):
            with pytest.raises(RequestError, match=words):
                llm.add(*arguments)
        with pytest.raises(RequestError, match="prompt: expected at least one token id, found none"):
            await llm.generate([])
        with pytest.raises(RequestError, match=r"temperature: .*pass SamplingParams"):
            llm.add([1], temperature=1)
        # What fails in a processor of the caller is the request's error; the others go on.
        bad = llm.add([1], SamplingParams(logits_processors=lambda tokens, logits: None))
        good = llm.add([1], max_new_tokens=3)
        with pytest.raises(RequestError, match=r"logits_processors\[0\]: expected logits"):
            await bad.result()
        assert (await good.result()).token_ids == tuple(toy_greedy(engine.config, [1], 3))
        return llm

    settings = ServingSettings(block_size=4, memory_bytes=40_000, prefix_cache="radix")
    llm = run(tmp_path, engine, work, settings)

    async def late():
        await llm.score("a", "b")

    with pytest.raises(RequestError, match="expected an open AsyncLLM, found a closed one"):
        asyncio.run(late())
