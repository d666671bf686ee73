"""A loop that starts over, and calls that change its cache, with an interrupt at any line: no memory is lost."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hybridge.artifact.errors import EngineError
from hybridge.runtime.prefix_cache.settings import PrefixCacheSettings
from hybridge.runtime.prefix_cache.token_key import key_from_tokens
from hybridge.runtime.prefix_cache.transfer import DeviceCache
from hybridge.runtime.scheduler import Scheduler
from hybridge.runtime.serving.cache_control import CacheControl
from hybridge.runtime.serving.loop import ServingLoop
from hybridge.runtime.serving.prefix_cache import ServedCache
from hybridge.runtime.serving.request import Output
from hybridge.runtime.serving.worker import ServingWorker
from tests.runtime.serving.interruption import Lines
from tests.runtime.serving.test_transfer import Copied
from tests.runtime.serving.toy_loop import answers, make_request, run_all, toy_loop
from tests.runtime.toy_engine import HYBRID
from tests.runtime.toy_paged_engine import ToyPagedEngine, toy_greedy
from tests.support.effort import examples

PROMPT, OTHER = [1, 2, 3, 4, 5, 6, 7, 8, 9], [4, 4, 5, 1, 2]
Opened = tuple[ServingLoop, ToyPagedEngine]


def opened(**cache: int) -> Opened:
    return toy_loop(HYBRID, max_rows=2, memory_bytes=900, prefix_cache=PrefixCacheSettings(**cache))


def interrupted(
    code: Callable[..., object], prepare: Callable[[], tuple[Opened, Callable[[], object]]], most: int | None = None
) -> Iterator[Opened]:
    """After an interrupt at lines of ``code``, while what ``prepare`` gives runs: all, or about ``most``."""
    _, work = prepare()
    whole = Lines({code.__code__})
    whole.during(work)
    assert whole.count > 10
    for at in range(1, whole.count + 1, 1 if most is None else max(1, whole.count // most)):
        found, work = prepare()
        with pytest.raises(KeyboardInterrupt):
            Lines({code.__code__}, at=at).during(work)
        yield found


def serves_on(loop: ServingLoop, engine: ToyPagedEngine) -> None:
    """The loop ends what there is, answers rightly, and owns all its memory."""
    run_all(loop)
    for prompt in (PROMPT, OTHER):
        id_ = loop.add(make_request(prompt, 3))
        assert answers(run_all(loop)) == {(id_, 0): tuple(toy_greedy(engine.config, prompt, 3))}
    loop.scheduler.check_integrity()
    fresh, manager = opened()[0].scheduler.manager, loop.scheduler.manager
    assert (manager.pool.available, manager.rows.free) == (fresh.pool.available, fresh.rows.free)


def test_starting_over_may_be_interrupted() -> None:
    def prepare() -> tuple[Opened, Callable[[], object]]:
        loop, engine = opened(host_bytes=1000)
        loop.add(make_request(PROMPT, 3))
        loop.step()
        loop.scheduler.records.torn = KeyboardInterrupt()
        return (loop, engine), loop.settle

    for loop, engine in interrupted(ServingLoop._start_over, prepare):
        serves_on(loop, engine)


@pytest.mark.parametrize("call", ["reset", "bring back", "load"])
def test_control_of_the_cache_may_be_interrupted(call: str) -> None:
    codes = {"reset": CacheControl.reset, "bring back": ServedCache.bring_back, "load": DeviceCache.copy_in}

    def prepare() -> tuple[Opened, Callable[[], object]]:
        loop, engine = opened(host_bytes=10_000)
        for prompt in (PROMPT, OTHER):
            loop.add(make_request(prompt, 3))
            run_all(loop)
        served, tokens = loop.served_cache, PROMPT[:-1]
        assert served is not None
        copied = Copied(loop, engine, tokens)
        control = CacheControl(loop, Path())
        if call == "reset":
            return (loop, engine), control.reset
        while served.cache.evict_state() or served.cache.evict_kv():
            pass
        if call == "bring back":
            return (loop, engine), lambda: served.bring_back(tokens, "")
        return (loop, engine), lambda: served.device.copy_in(key_from_tokens(tokens), "", copied)

    for loop, engine in interrupted(codes[call], prepare, examples(100)):
        serves_on(loop, engine)


def test_the_first_cause_is_the_one_that_requests_are_told() -> None:
    loop, _ = opened()
    id_ = loop.add(make_request(PROMPT, 3))
    for error in (MemoryError("the first"), EngineError("the second")):
        loop.scheduler.records.tear(error)
    (output,) = run_all(loop)
    assert output.request_id == id_ and "the first" in str(output.error)


def test_a_worker_tells_of_a_request_that_it_could_not_add(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise MemoryError

    loop, _ = opened()
    worker, told, outputs = ServingWorker(loop, lambda: None), threading.Event(), list[Output]()

    def deliver(output: Output) -> None:
        outputs.append(output)
        if output.error is not None or (output.piece is not None and output.piece.generation is not None):
            told.set()

    with monkeypatch.context() as patch:
        patch.setattr(Scheduler, "add", fail)
        worker.add("a", make_request(PROMPT, 3), time.perf_counter(), deliver)
        assert told.wait(30)
    assert "the request could not be added: MemoryError" in str(outputs[-1].error)
    told.clear()
    worker.add("b", make_request(PROMPT, 3), time.perf_counter(), deliver)
    assert told.wait(30) and outputs[-1].error is None
    worker.close()
