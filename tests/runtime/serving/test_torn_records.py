"""An exception at any line at which the loop plans or commits a step, or adds, ends or forgets a sequence."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from itertools import cycle

import pytest

from hybridge.runtime.prefix_cache.settings import PrefixCacheSettings
from hybridge.runtime.scheduler import Scheduler
from hybridge.runtime.serving.draft_model import ModelDrafter
from hybridge.runtime.serving.live_requests import LiveRequests
from hybridge.runtime.serving.loop import ServingLoop
from hybridge.runtime.serving.pinned import PinnedPrefix
from hybridge.runtime.serving.request import Output
from hybridge.runtime.speculation import SpeculationSettings
from tests.runtime.serving.interruption import Lines
from tests.runtime.serving.test_prefix_cache import poison
from tests.runtime.serving.test_speculation import speculating
from tests.runtime.serving.toy_loop import answers, make_request, run_all, toy_loop
from tests.runtime.toy_engine import HYBRID, PURE_ATTENTION
from tests.runtime.toy_paged_engine import VOCAB, ToyPagedEngine, paged_config, toy_greedy
from tests.support.effort import examples

# All methods that ``changes`` wraps have the code of its wrapper, which ``add`` stands for.
SWEPT = {
    function.__code__
    for function in (Scheduler.plan, Scheduler.commit, LiveRequests.add, LiveRequests.cancel, LiveRequests._forget)
}
SYSTEM = [1, 2, 3, 4, 5, 6, 7]
PROMPTS = [[*SYSTEM, 8, 9], [1, 2, 3, 4, 5, 9, 9], [4, 4], [*SYSTEM, 8, 9, 1]]
RADIX, SMALL = PrefixCacheSettings(decode_interval=3), {"max_seq_len": 18, "swap_bytes": 200}

Opened = tuple[ServingLoop, ToyPagedEngine]
LOOPS: dict[str, Callable[[], Opened]] = {
    "ahead": lambda: toy_loop(HYBRID, ahead=True, max_rows=3, prefix_cache=RADIX),
    "swaps": lambda: toy_loop(HYBRID, max_rows=3, memory_bytes=560, prefix_cache=RADIX, **SMALL),
    "attention": lambda: toy_loop(PURE_ATTENTION, max_rows=3, memory_bytes=280, prefix_cache=RADIX, **SMALL),
    "blocks": lambda: toy_loop(PURE_ATTENTION, ahead=True, max_rows=3, prefix_cache="blocks"),
    "window": lambda: toy_loop(HYBRID, 5, max_rows=3, memory_bytes=220, prefix_cache="off", **SMALL),
    "drafts": lambda: speculating(HYBRID, [2, 0, 3], max_rows=3, prefix_cache=RADIX)[:2],
}


class Served:
    """A loop with a pinned prefix, if it has a radix tree, and its requests."""

    def __init__(self, name: str) -> None:
        self.loop, self.engine = LOOPS[name]()
        if self.loop.served_cache is not None:
            self.loop.served_cache.pinned.add(PinnedPrefix("system", tuple(SYSTEM)), self._compute)
        self.free = self._free()
        self.requests: dict[int, tuple[list[int], int]] = {}
        self.outputs: list[Output] = []

    def _compute(self) -> None:
        for prompt in (SYSTEM[:-1], SYSTEM):
            self.loop.add(make_request(prompt, 1))
            run_all(self.loop)

    def _free(self) -> tuple[int, int, int]:
        manager = self.loop.scheduler.manager
        return manager.pool.available, manager.slots.free, manager.rows.free

    def serve(self) -> None:
        """Four requests, one of two answers, and one that is cancelled."""
        for prompt, new, answers_ in zip(PROMPTS, (4, 6, 4, 5), (1, 1, 2, 1), strict=True):
            self.requests[self.loop.add(make_request(prompt, new, n=answers_))] = prompt, new
        gone = self.loop.add(make_request([6, 6, 6], 9))
        while self.loop.busy:
            self.outputs += self.loop.step()
            if self.loop.steps % 5 == 4:
                self.loop.cancel(gone)

    def finish(self) -> None:
        """What an exception has left."""
        poison(self.loop, self.engine)
        steps = 0
        while self.loop.busy:
            self.outputs += self.loop.step()
            steps += 1
            assert steps < 100, "the loop is stuck"

    def check(self, may_fail: bool) -> None:
        """Each request has its answer, or an error if that is allowed; no memory is in use but the prefix cache's."""
        errors = {output.request_id for output in self.outputs if output.error is not None}
        assert may_fail or not errors
        found = answers(self.outputs)
        for id_, (prompt, new) in self.requests.items():
            if id_ not in errors:
                assert found[id_, 0] == tuple(toy_greedy(self.engine.config, prompt, new))
        self.loop.scheduler.check_integrity()
        assert not self.loop.scheduler.sequences and self._free() == self.free
        self.requests, self.outputs = {}, []


@pytest.mark.parametrize("name", LOOPS)
def test_the_loop_serves_on_after_an_exception_at_any_line(name: str) -> None:
    whole = Lines(SWEPT)
    whole.during(Served(name).serve)
    # On push some lines, which lie apart by an odd number.
    step = max(1, whole.count // examples(80)) | 1
    for at, kind in zip(range(1 + step // 2, whole.count, step), cycle((KeyboardInterrupt, MemoryError)), strict=False):
        served, lines = Served(name), Lines(SWEPT, kind, at)
        with contextlib.suppress(kind):
            lines.during(served.serve)
        assert lines.where
        try:
            served.finish()
            served.check(may_fail=True)
            served.serve()
            served.check(may_fail=False)
            if served.loop.prefix_cache is not None:
                assert served.loop.prefix_cache.pins.counts() != (0, 0)
        except BaseException as error:
            raise AssertionError(f"after {kind.__name__} at {lines.where}, line {at}") from error


def test_a_draft_model_loses_no_memory_at_any_line_at_which_it_forgets_a_sequence() -> None:
    def drafting() -> tuple[ServingLoop, ToyPagedEngine, ModelDrafter]:
        drafter = ModelDrafter(ToyPagedEngine(paged_config(HYBRID)), VOCAB, 3, 40, 2)
        speculation = SpeculationSettings(2, drafter, adaptive=False, draft_token_cost=0.1)
        return *toy_loop(HYBRID, max_rows=3, speculation=speculation), drafter

    def serve(loop: ServingLoop) -> None:
        for prompt in PROMPTS[:2]:
            loop.add(make_request(prompt, 4))
        run_all(loop)

    whole, (loop, _, _) = Lines({LiveRequests._forget.__code__}), drafting()
    whole.during(partial(serve, loop))
    assert whole.count > 20
    for at in range(1, whole.count + 1):
        loop, engine, drafter = drafting()
        blocks, slots = len(drafter._caches._blocks), len(drafter._caches._slots)
        with pytest.raises(KeyboardInterrupt):
            Lines({LiveRequests._forget.__code__}, at=at).during(partial(serve, loop))
        run_all(loop)
        id_ = loop.add(make_request(PROMPTS[0], 6))
        assert answers(run_all(loop)) == {(id_, 0): tuple(toy_greedy(engine.config, PROMPTS[0], 6))}
        assert (len(drafter._caches._blocks), len(drafter._caches._slots)) == (blocks, slots)
