"""What a plugin meets reaches the caller of TensorRT, on the thread that called."""

from __future__ import annotations

import threading

import pytest

from hybridge.artifact.errors import EngineError
from hybridge.trt_plugins.plugins.errors import PluginErrors


def test_the_first_error_counts_and_is_taken_once() -> None:
    errors = PluginErrors()
    errors.record(EngineError("first"))
    errors.record(EngineError("a consequence"))
    assert str(errors.take()) == "first"
    assert errors.take() is None


def test_it_replaces_what_tensorrt_made_of_it() -> None:
    errors = PluginErrors()
    with pytest.raises(EngineError, match=r"^the reason$") as caught, errors.raised():
        errors.record(EngineError("the reason"))
        raise EngineError("error code 4")
    assert str(caught.value.__cause__) == "error code 4"


def test_the_error_is_raised_where_tensorrt_continues() -> None:
    errors = PluginErrors()
    with pytest.raises(EngineError, match="no workspace"), errors.raised():
        errors.record(EngineError("no workspace"))


def test_other_errors_and_good_ends_pass() -> None:
    errors = PluginErrors()
    with errors.raised():
        pass
    with pytest.raises(KeyError), errors.raised():
        raise KeyError("x")


def test_what_lies_before_the_block_is_not_its_error() -> None:
    errors = PluginErrors()
    errors.record(EngineError("old"))
    with errors.raised():
        pass


@pytest.mark.parametrize("any_thread", [False, True])
def test_threads_are_separate_unless_requested(any_thread: bool) -> None:
    errors = PluginErrors()
    thread = threading.Thread(target=lambda: errors.record(EngineError("of another thread")))
    thread.start()
    thread.join()
    found = errors.take(any_thread)
    assert (str(found) if found else None) == ("of another thread" if any_thread else None)
