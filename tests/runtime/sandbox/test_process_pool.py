"""Calls at the same time have a child each, up to a limit; calls one after another share one."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from hybridge.artifact.limits import MIB
from hybridge.runtime.sandbox import process_pool
from hybridge.runtime.sandbox.process import LimitedProcess, LimitError, ProcessLimits
from hybridge.runtime.sandbox.process_pool import ProcessPool

LIMITS = ProcessLimits(seconds=5, memory=256 * MIB, request=MIB)
MOST = 3


class Child:
    """Answers when MOST calls run at the same time, or to "alone" at once."""

    made: list[Child]
    together: threading.Barrier

    def __init__(self, limits: ProcessLimits) -> None:
        self.made.append(self)
        self.running = self.closed = False

    def call(self, how: str) -> bytes:
        assert not self.running, "one child has two requests"
        self.running = True
        try:
            if how == "fails":
                raise LimitError("more than it may have")
            if how == "together":
                self.together.wait(30)
                time.sleep(0.001)
            return b"done"
        finally:
            self.running = False

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> ProcessPool:
    monkeypatch.setattr(Child, "made", [], raising=False)
    monkeypatch.setattr(Child, "together", threading.Barrier(MOST), raising=False)
    monkeypatch.setattr(process_pool, "LimitedProcess", Child)
    return ProcessPool(LIMITS, MOST)


def test_as_many_calls_as_children_run_at_the_same_time(pool: ProcessPool) -> None:
    with ThreadPoolExecutor(4 * MOST) as threads:
        answers = list(threads.map(pool.call, ["together"] * 4 * MOST))
    assert answers == [b"done"] * 4 * MOST and len(Child.made) == MOST
    pool.close()
    assert all(child.closed for child in Child.made)


def test_calls_one_after_another_need_one_child(pool: ProcessPool) -> None:
    for how in ("alone", "fails", "alone"):
        if how == "fails":
            with pytest.raises(LimitError):
                pool.call(how)
        else:
            assert pool.call(how) == b"done"
    assert len(Child.made) == 1


def test_a_real_child_renders(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    monkeypatch.setattr(process_pool, "LimitedProcess", lambda limits: made.append(LimitedProcess(limits)) or made[-1])
    pool = ProcessPool(LIMITS, 2)
    values = {"messages": [{"role": "user", "content": "a"}], "add_generation_prompt": True}
    for _ in range(2):
        assert pool.call("render", "{{ messages[0].content }}!", values) == b"a!"
        pool.close()
    assert len(made) == 1
