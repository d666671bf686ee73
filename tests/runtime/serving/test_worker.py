"""Commands to a serving loop's thread."""

import threading

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
