"""A recorded graph without a GPU: the calls of the driver, and when its graph is released."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch", reason="the torch engine needs torch")

from hybridge.artifact.errors import EngineError
from hybridge.runtime.engines.torch import recorded_graph
from hybridge.runtime.engines.torch.recorded_graph import RecordedGraph

GRAPH, EXECUTABLE, STREAM, DEVICE = 0x10, 0x20, 0x30, "cuda:0"


class Driver:
    """Answers like the driver; every function succeeds while ``code`` is 0."""

    def __init__(self) -> None:
        self.code, self.context_is_set, self.called = 0, True, list[tuple]()

    def CUgraph(self, handle: int) -> int:
        return handle

    def cuGraphInstantiate(self, graph: int, flags: int) -> tuple:
        self.called.append(("instantiate", graph, flags))
        return 0, EXECUTABLE

    def cuGraphExecDestroy(self, executable: int) -> None:
        self.called.append(("destroy", executable))

    def function(self, name: str, arguments: int) -> Callable[..., int]:
        assert (name, arguments) == ("cuGraphLaunch", 2)

        def launch(executable: ctypes.c_void_p, stream: ctypes.c_void_p) -> int:
            self.called.append(("launch", executable.value, stream.value))
            return self.code if self.context_is_set else 201

        return launch


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    found = Driver()
    monkeypatch.setattr(recorded_graph, "cuda_driver", lambda: found)
    monkeypatch.setattr(recorded_graph, "driver_function", found.function)
    monkeypatch.setattr(recorded_graph, "result_name", lambda code: f"CUDA_ERROR_{code}")
    return found


def recorded() -> RecordedGraph:
    graph: Any = SimpleNamespace(raw_cuda_graph=lambda: GRAPH)
    stream: Any = SimpleNamespace(cuda_stream=STREAM, device=DEVICE)
    return RecordedGraph(graph, stream)


def test_it_is_made_executable_once_and_given_back(driver: Driver) -> None:
    graph = recorded()
    graph.launch()
    graph.launch()
    del graph
    launch = ("launch", EXECUTABLE, STREAM)
    assert driver.called == [("instantiate", GRAPH, 0), launch, launch, ("destroy", EXECUTABLE)]


def test_a_thread_that_has_not_used_the_gpu_can_launch(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    def set_device(device: str) -> None:
        assert device == DEVICE
        driver.context_is_set = True

    monkeypatch.setattr(recorded_graph.torch.cuda, "set_device", set_device)
    graph = recorded()
    driver.context_is_set = False
    graph.launch()
    assert [call[0] for call in driver.called] == ["instantiate", "launch", "launch"]


def test_a_refused_launch_says_so(driver: Driver) -> None:
    graph = recorded()
    driver.code = 700
    with pytest.raises(EngineError, match="launching a CUDA graph: the CUDA driver returned CUDA_ERROR_700"):
        graph.launch()
