"""Calls of several threads on one LLM take turns, and none comes after its end."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hybridge.artifact.errors import EngineError, RequestError
from hybridge.runtime.llm import LLM
from hybridge.runtime.sampling import SamplingParams
from hybridge.runtime.serving.settings import ServingSettings
from tests.runtime.generation.toy_llm import VOCAB, toy_llm
from tests.runtime.text.tokenizer_files import byte_level_tokenizer
from tests.runtime.toy_engine import HYBRID
from tests.runtime.toy_paged_engine import ToyPagedEngine, paged_config


def paged_llm(folder: Path) -> LLM:
    byte_level_tokenizer(folder)
    engine = ToyPagedEngine(paged_config(HYBRID, vocab=VOCAB), max_tokens=24, max_rows=8)
    return LLM(folder, engine, serving=ServingSettings(block_size=4, memory_bytes=40_000, prefix_cache="radix"))


@pytest.fixture(params=[toy_llm, paged_llm], ids=["dense", "paged"])
def llm(request: pytest.FixtureRequest, tmp_path: Path) -> LLM:
    return request.param(tmp_path)


def test_threads_get_the_tokens_each_gets_alone(llm: LLM) -> None:
    rng = np.random.default_rng(0)
    prompts = [rng.integers(2, 40, rng.integers(1, 20)).tolist() for _ in range(24)]
    alone = [llm.generate(prompt, max_new_tokens=8).token_ids for prompt in prompts]
    start = threading.Barrier(4)

    def work(first: int) -> list[tuple[int, ...]]:
        start.wait()
        found = []
        for place, prompt in enumerate(prompts[first::4]):
            if place % 2:
                found.append(llm.generate(prompt, max_new_tokens=8).token_ids)
            else:
                pieces = llm.generate(prompt, max_new_tokens=8, stream=True)
                found.append(tuple(token for piece in pieces for token in piece.token_ids))
            llm.generate(prompt, max_new_tokens=8, stream=True).close()
            next(llm.generate(prompt, max_new_tokens=8, stream=True))  # left early
        return found

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(work, range(4)))
    assert [found[place % 4][place // 4] for place in range(24)] == alone
    gc.collect()
    assert llm.generate(prompts[0], max_new_tokens=8).token_ids == alone[0]
    if llm.config.layout == "paged":
        assert not llm.loop.scheduler.sequences


def test_one_stream_may_be_read_by_several_threads(llm: LLM) -> None:
    expected = llm.generate([5, 6], max_new_tokens=40).token_ids
    stream = llm.generate([5, 6], max_new_tokens=40, stream=True)
    with ThreadPoolExecutor(4) as pool:
        parts = list(pool.map(lambda _: [token for piece in stream for token in piece.token_ids], range(4)))
    assert sorted(token for part in parts for token in part) == sorted(expected)


def test_a_call_from_inside_of_a_step_is_refused(llm: LLM) -> None:
    inside: list[Callable[[], Any]] = [lambda: llm.generate([1]), llm.close, lambda: llm.cache_prefix([1])]

    def process(tokens: tuple[int, ...], logits: np.ndarray) -> np.ndarray:
        inside[len(tokens)]()
        return logits

    for call in list(inside):
        inside[0] = call
        with pytest.raises(RequestError, match="expected a call between the steps of an LLM, found one from inside"):
            llm.generate([1], SamplingParams(logits_processors=process), max_new_tokens=2)
    assert llm.generate([1], max_new_tokens=2).token_ids


def test_a_failing_processor_ends_its_own_request(tmp_path: Path) -> None:
    with paged_llm(tmp_path) as llm:
        bad = SamplingParams(logits_processors=lambda tokens, logits: None)
        stream = llm.generate([7], max_new_tokens=20, stream=True)
        first = next(stream)
        with pytest.raises(RequestError, match=r"logits_processors\[0\]: expected logits"):
            llm.generate([1], bad)
        assert len([first, *stream]) == 20


def test_nothing_comes_after_the_end(llm: LLM, tmp_path: Path) -> None:
    open_stream, fresh = (llm.generate([5], max_new_tokens=30, stream=True) for _ in range(2))
    next(open_stream)
    llm.close()
    llm.close()
    calls: list[Callable[[], Any]] = [
        lambda: llm.generate([1]),
        lambda: llm.generate("a", stream=True),
        lambda: llm.chat("a"),
        lambda: llm.score([1, 2]),
        lambda: llm.cache_prefix("a"),
        lambda: llm.drop_prefix("a"),
        lambda: llm.reset_prefix_cache(),
        lambda: llm.save_session(tmp_path / "s", [1]),
        lambda: llm.load_session(tmp_path / "s"),
        lambda: llm.prefix_cache_report(),
        lambda: next(open_stream),
        lambda: next(fresh),
    ]
    for call in calls:
        with pytest.raises(RequestError, match="expected an open LLM, found a closed one: open another"):
            call()
    open_stream.close()


def test_closing_waits_for_the_step_of_another_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    llm, inside, go_on = paged_llm(tmp_path), threading.Event(), threading.Event()
    step = llm.engine.step

    def slow(inputs: Any) -> np.ndarray:
        inside.set()
        assert go_on.wait(20)
        return step(inputs)

    monkeypatch.setattr(llm.engine, "step", slow)
    with ThreadPoolExecutor(2) as pool:
        answer = pool.submit(llm.generate, [1], None, 9)
        assert inside.wait(20)
        closing = pool.submit(llm.close)
        while not closing.running():
            time.sleep(0.01)
        # Time enough for close to wait for its turn, also on a machine with other work.
        time.sleep(0.5)
        go_on.set()
        closing.result(20)
        assert isinstance(answer.exception(20), (RequestError, EngineError))
    assert not llm.loop.scheduler.sequences
