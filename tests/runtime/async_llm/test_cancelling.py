"""AsyncLLM: a request ends when its stream is cancelled, closed or abandoned, and when the AsyncLLM is closed."""

import asyncio
import contextlib
import threading
import time

import pytest

from hybridge.artifact.errors import EngineError, RequestError
from hybridge.runtime.async_llm import AsyncLLM
from hybridge.runtime.text import Tokenizer
from tests.runtime.async_llm.running import SETTINGS, run
from tests.runtime.toy_paged_engine import toy_greedy


@pytest.fixture
def slow_engine(engine, monkeypatch):
    """A step takes longer than the task that reads needs, however busy the machine."""
    step = engine.step
    monkeypatch.setattr(engine, "step", lambda inputs: time.sleep(0.02) or step(inputs))
    return engine


def test_a_stream_may_be_cancelled_at_any_time(tmp_path, slow_engine):
    async def work(llm):
        stream, other = llm.add([1] * 20, max_new_tokens=70), llm.add([2], max_new_tokens=5)
        seen = 0
        async for _ in stream:
            seen += 1
            if seen == 3:
                stream.cancel()
        unread = llm.add([3], max_new_tokens=70)
        unread.cancel()
        assert [piece async for piece in unread] == []
        with pytest.raises(asyncio.CancelledError):
            await unread.result()
        return seen, await other.result()

    seen, other = run(tmp_path, slow_engine, work)
    assert 3 <= seen < 70
    assert list(other.token_ids) == toy_greedy(slow_engine.config, [2], 5)


def test_cancelling_a_task_cancels_its_request(tmp_path, engine):
    async def work(llm):
        task = asyncio.create_task(llm.generate([4] * 9, max_new_tokens=80))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(tmp_path, engine, work)


@pytest.mark.parametrize("reader", ["generator", "task"])
def test_leaving_a_stream_early_ends_the_request(tmp_path, slow_engine, reader):
    async def texts(llm):
        async with contextlib.aclosing(llm.add([1] * 20, max_new_tokens=70)) as stream:
            async for piece in stream:
                yield piece.text

    async def first_of_generator(llm):
        async with contextlib.aclosing(texts(llm)) as pieces:
            return await anext(pieces)

    async def cancelled_task(llm):
        started = asyncio.Event()

        async def read():
            async for _ in texts(llm):
                started.set()

        task = asyncio.create_task(read())
        await started.wait()
        task.cancel()
        await asyncio.wait([task])

    async def work(llm):
        await (first_of_generator if reader == "generator" else cancelled_task)(llm)
        while llm.loop.busy:
            await asyncio.sleep(0.01)
        return llm.loop.steps

    assert run(tmp_path, slow_engine, work) < 40


def test_a_text_may_be_cancelled_while_it_is_tokenized(tmp_path, engine, monkeypatch):
    may_encode, encode = threading.Event(), Tokenizer.encode
    monkeypatch.setattr(Tokenizer, "encode", lambda self, *rest: may_encode.wait(30) and encode(self, *rest))

    async def work(llm):
        added, add = [], llm.loop.add
        monkeypatch.setattr(llm.loop, "add", lambda *rest: added.append(rest) or add(*rest))
        streams = [llm.add("ab", max_new_tokens=60) for _ in range(3)]
        streams[0].cancel()
        await streams[1].aclose()
        may_encode.set()
        last = await streams[2].result()
        assert len(added) == 1
        with pytest.raises(asyncio.CancelledError):
            await streams[0].result()
        return last

    assert run(tmp_path, engine, work).text


def test_a_closed_stream_has_no_more_pieces(tmp_path, engine):
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


def test_closing_ends_requests_that_are_being_tokenized(tmp_path, engine, monkeypatch):
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


def test_closing_ends_running_requests(tmp_path, slow_engine):
    async def main():
        llm = AsyncLLM(tmp_path, slow_engine, serving=SETTINGS)
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
