"""A process with limits ends with its owner, and no answer reaches a request that it does not belong to."""

import gc
import os
import signal
import threading
from typing import Any

import pytest

from hybridge.artifact.errors import RequestError
from hybridge.artifact.limits import MIB
from hybridge.runtime.sandbox.process import LimitedProcess, LimitError, ProcessLimits

LIMITS = ProcessLimits(seconds=2, memory=256 * MIB, request=MIB)


def rendered(process: LimitedProcess, source: str, **variables: Any) -> str:
    return process.call("render", source, variables).decode()


def children() -> set[int]:
    """Process ids of this process's children."""
    with open(f"/proc/self/task/{threading.get_native_id()}/children") as file:
        return set(map(int, file.read().split()))


needs_proc = pytest.mark.skipif(not os.path.exists("/proc/self/task"), reason="needs /proc")


@needs_proc
@pytest.mark.parametrize("way", ["close", "collected"])
def test_the_child_ends_with_its_owner(way: str) -> None:
    before = children()
    process = LimitedProcess(LIMITS)
    assert children() <= before  # none is started before it is needed
    assert rendered(process, "{{ x + 1 }}", x=1) == "2"
    (child,) = children() - before
    if way == "close":
        process.close()
        process.close()
    else:
        del process
        gc.collect()
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)


def test_threads_get_their_own_answers() -> None:
    process, wrong = LimitedProcess(LIMITS), []

    def ask(start: int) -> None:
        for x in range(start, start + 30):
            if rendered(process, "{{ x }}", x=x) != str(x):
                wrong.append(x)

    threads = [threading.Thread(target=ask, args=(1000 * index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@needs_proc
def test_a_killed_child_is_an_error_and_the_next_request_starts_another() -> None:
    before = children()
    process = LimitedProcess(LIMITS)
    assert rendered(process, "a") == "a"
    (child,) = children() - before
    os.kill(child, signal.SIGSEGV)
    with pytest.raises(LimitError, match="SIGSEGV"):
        rendered(process, "b")
    assert rendered(process, "c") == "c"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_starts_its_own_child() -> None:
    process = LimitedProcess(LIMITS)
    assert rendered(process, "a") == "a"
    child = os.fork()
    if child == 0:
        os._exit(rendered(process, "{{ x }}", x=7) != "7")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert rendered(process, "b") == "b"


def test_a_refusal_keeps_the_child() -> None:
    process = LimitedProcess(LIMITS)
    with pytest.raises(RequestError, match="no"):
        rendered(process, "{{ raise_exception('no') }}")
    assert rendered(process, "b") == "b"
