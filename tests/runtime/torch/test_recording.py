"""Recording without a GPU: from which memory, and that nothing is collected in between."""

from __future__ import annotations

import gc
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

pytest.importorskip("torch", reason="the torch engine needs torch")

import torch

from hybridge.runtime.engines.torch import recording
from hybridge.runtime.engines.torch.recording import RepeatedWork


class Graph:
    """What torch records into."""

    pools: ClassVar[list[object]] = []

    def __init__(self, keep_graph: bool) -> None:
        assert keep_graph

    def capture_begin(self, pool: object, capture_error_mode: str) -> None:
        self.pools.append(pool)

    def capture_end(self) -> None:
        pass


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(recording, "RecordedGraph", lambda graph, stream: SimpleNamespace(launch=lambda: None))
    monkeypatch.setattr(Graph, "pools", [])
    return SimpleNamespace(is_gpu=True, stream=object(), graph_pool="steps", synchronize=lambda: None)


def test_cycles_are_not_collected_while_a_graph_is_recorded(device: Any) -> None:
    collects = list[bool]()
    repeated = RepeatedWork(device, lambda: collects.append(gc.isenabled()))
    for _ in range(3):
        repeated.run()
    assert collects == [True, False] and repeated.is_replayed and gc.isenabled()


def test_they_are_again_where_recording_fails(device: Any) -> None:
    def fails() -> None:
        if not gc.isenabled():
            raise RuntimeError("operation not permitted")

    repeated = RepeatedWork(device, fails)
    repeated.run()
    with pytest.warns(RuntimeWarning, match="without a CUDA graph, which is slower: operation not permitted"):
        repeated.run()
    assert gc.isenabled() and repeated.direct and not repeated.is_replayed


def test_a_graph_has_the_pool_that_it_is_given(device: Any) -> None:
    for pool in (None, "advances"):
        repeated = RepeatedWork(device, lambda: None, pool)
        repeated.run()
        repeated.run()
    assert Graph.pools == ["steps", "advances"]
