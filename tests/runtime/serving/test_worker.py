"""Commands to a serving loop's thread, and what its steps wait for."""

import threading
from concurrent.futures import TimeoutError

import pytest

from hybridge.runtime.serving import worker as serving_worker
from hybridge.runtime.serving.text_queue import TextQueue
from hybridge.runtime.serving.worker import ServingWorker
from tests.runtime.serving.toy_loop import toy_loop


def test_cancelled_work_is_skipped():
    worker, gate, done = ServingWorker(toy_loop()[0], lambda: None), threading.Event(), []
    first = worker.call(gate.wait)
    second = worker.call(lambda: done.append(2))
    assert second.cancel()
    gate.set()
    assert first.result(30)
    assert worker.call(lambda: 3).result(30) == 3 and not done
    worker.close()


class Steps:
    """A loop that is busy for ever once it ``started``, and counts its steps. ``third``: set in the third one."""

    step_seconds = 60.0

    def __init__(self, runs_ahead):
        self.runs_ahead, self.busy, self.count, self.third = runs_ahead, False, 0, threading.Event()

    def start(self):
        self.busy = True

    def step(self, arrivals):
        arrivals()
        self.count += 1
        if self.count == 3:
            self.third.set()
        return []


@pytest.mark.parametrize("runs_ahead", [False, True])
def test_steps_on_the_host_wait_for_text_work_and_its_request(monkeypatch, runs_ahead):
    monkeypatch.setattr(serving_worker, "_TEXT_SECONDS", 60.0)
    monkeypatch.setattr(serving_worker, "_REQUEST_SECONDS", 60.0)
    loop, texts, gate = Steps(runs_ahead), TextQueue(), threading.Event()
    worker = ServingWorker(loop, lambda: None, texts)
    work = texts.submit(lambda: gate.wait(60))
    # The step that starts it had nothing to compute, and did not wait.
    worker.call(loop.start).result(30)
    counted = worker.call(lambda: loop.count)
    if runs_ahead:
        assert loop.third.wait(30) and counted.result(30)
    else:
        with pytest.raises(TimeoutError):
            counted.result(0.05)
    gate.set()
    assert work.result(30)
    assert counted.result(30) == 1 or runs_ahead
    worker.close()
    texts.close()


def test_a_step_waits_for_text_work_no_longer_than_a_step_takes(monkeypatch):
    monkeypatch.setattr(Steps, "step_seconds", 0.001)
    loop, texts, gate = Steps(False), TextQueue(), threading.Event()
    worker = ServingWorker(loop, lambda: None, texts)
    texts.submit(lambda: gate.wait(60))
    worker.call(loop.start).result(30)
    assert loop.third.wait(30)
    gate.set()
    worker.close()
    texts.close()
