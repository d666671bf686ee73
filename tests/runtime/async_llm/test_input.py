"""AsyncLLM reads prompts, messages and files in a thread other than the event loop's."""

import asyncio
import threading

import numpy as np
import pytest

from hybridge.artifact.errors import EngineError, RequestError
from hybridge.runtime.generation import Request
from hybridge.runtime.sampling import SamplingParams
from hybridge.runtime.serving.pinned import read_prefixes
from hybridge.runtime.text import Tokenizer
from tests.runtime.async_llm.running import RADIX, run


def off_the_event_loop(function):
    def checked(*args, **options):
        assert threading.current_thread() is not threading.main_thread()
        return function(*args, **options)

    return checked


class IdsReadOffTheLoop(np.ndarray):
    tolist = off_the_event_loop(np.ndarray.tolist)


class MessageReadOffTheLoop(dict):
    items = off_the_event_loop(dict.items)


class TokensReadOffTheLoop(list):
    __iter__ = off_the_event_loop(list.__iter__)


def test_input_is_read_off_the_event_loop(tmp_path, engine, monkeypatch):
    (tmp_path / "chat_template.jinja").write_text("{{ messages[0].content }}{{ tools[0].name }}")
    prefixes = tmp_path / "prefixes.json"
    prefixes.write_text('{"prefixes": {"a": [1, 2, 3]}}')
    encode = Tokenizer.encode

    async def work(llm):
        ids = np.arange(1, 9).view(IdsReadOffTheLoop)
        answer = await llm.generate(ids, SamplingParams(bad_words=["ab"]), max_new_tokens=3)
        assert answer.prompt_token_ids == tuple(range(1, 9))
        messages = [MessageReadOffTheLoop(role="user", content="he")]
        chat = llm.chat(messages, max_new_tokens=1, tools=[MessageReadOffTheLoop(name="llo")])
        messages.clear()
        assert (await chat.result()).prompt_token_ids == tuple(encode(llm.tokenizer, "hello", False))
        await llm.score(ids, ids)
        assert [prefix.name for prefix in await llm.cache_prefixes(prefixes)] == ["a"]
        with pytest.raises(EngineError, match="the toy-paged engine cannot save its states"):
            await llm.save_session(tmp_path / "session", TokensReadOffTheLoop([1, 2, 3]))
        with pytest.raises(RequestError, match="expected at most 65536 messages, found 65537"):
            llm.chat([MessageReadOffTheLoop()] * 65537)

    monkeypatch.setattr(Tokenizer, "encode", off_the_event_loop(encode))
    monkeypatch.setattr("hybridge.runtime.async_llm.read_prefixes", off_the_event_loop(read_prefixes))
    run(tmp_path, engine, work, RADIX)


def test_texts_are_tokenized_off_the_event_loop_and_in_order(tmp_path, engine, monkeypatch):
    may_encode, encode, started = threading.Event(), Tokenizer.encode, []

    def encode_when_allowed(self, text, add_special_tokens=True):
        assert threading.current_thread() is not threading.main_thread()
        assert may_encode.wait(30)
        return encode(self, text, add_special_tokens)

    async def work(llm):
        add = llm.loop.add
        monkeypatch.setattr(llm.loop, "add", lambda new, at: started.append(new.request.prompt_ids) or add(new, at))
        streams = [llm.add("ab", max_new_tokens=3), llm.add([7], max_new_tokens=3), llm.add("c", max_new_tokens=3)]
        await asyncio.sleep(0.05)
        assert not started
        may_encode.set()
        answers = [await stream.result() for stream in streams]
        await llm.generate([8], max_new_tokens=1)
        return [answer.prompt_token_ids for answer in answers]

    monkeypatch.setattr(Tokenizer, "encode", encode_when_allowed)
    in_order = run(tmp_path, engine, work)
    assert started[:3] == in_order and in_order[1] == (7,) and started[3] == (8,)


def test_few_token_ids_are_read_at_once_but_not_before_an_earlier_text(tmp_path, engine, monkeypatch):
    order, make = [], Request.from_prompt

    def recorded(prompt, *given):
        order.append((prompt, threading.current_thread() is threading.main_thread()))
        return make([1] if isinstance(prompt, str) else prompt, *given)

    monkeypatch.setattr(Request, "from_prompt", recorded)

    async def work(llm):
        streams = [llm.add(prompt, max_new_tokens=1) for prompt in ([1, 2], "text", [3, 4])]
        await asyncio.gather(*(stream.result() for stream in streams))

    run(tmp_path, engine, work)
    assert order == [((1, 2), True), ("text", False), ((3, 4), False)]


def test_the_stream_of_a_bad_text_raises(tmp_path, engine):
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
