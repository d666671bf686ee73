"""Which plans a runner keeps. The GPU's place is taken by one that binds plans and launches nothing."""

from __future__ import annotations

import gc
import weakref
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

pytest.importorskip("torch", reason="the torch engine needs torch")

import torch

from hybridge.runtime.engines.torch import kernels
from hybridge.runtime.engines.torch.kernels import MOST_BOUND, KernelRunner
from hybridge.trt_plugins.kernels.call import CallPlan, DeviceTraits
from tests.support.kernel_calls import H200


@dataclass(eq=False)
class Bound:
    plan: CallPlan
    launches: int = 0

    def launch(self, *arguments: object) -> None:
        self.launches += 1


@dataclass
class Gpu:
    """``made``: the plans that were bound, for as long as they are referenced."""

    traits: DeviceTraits = H200
    made: weakref.WeakSet[Bound] = field(default_factory=weakref.WeakSet)

    def bind(self, plan: CallPlan) -> Bound:
        bound = Bound(plan)
        self.made.add(bound)
        return bound

    @property
    def alive(self) -> set[str]:
        gc.collect()
        return {bound.plan.name for bound in self.made}


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    found = Gpu()
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(kernels, "stream_of", lambda device: 7)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(kernels, "KernelDevice", SimpleNamespace(current=lambda: found))
    return found


def launch(runner: KernelRunner, name: str, counter_bytes: int = 0) -> None:
    plan = CallPlan((), name=name, counter_bytes=counter_bytes)
    runner.launch(name, lambda traits: plan, (), ())


def test_the_latest_calls_are_cached(gpu: Gpu) -> None:
    """Prompts of every length are calls of their own, of which a server sees ever more."""
    runner = KernelRunner()
    for index in range(MOST_BOUND):
        launch(runner, str(index))
    launch(runner, "0")
    launch(runner, "one more", counter_bytes=4)
    launch(runner, "and another", counter_bytes=4)
    expected = {"0", *map(str, range(3, MOST_BOUND)), "one more", "and another"}
    assert gpu.alive == expected
    assert {bound.plan.name: bound.launches for bound in gpu.made}["0"] == 2


def test_what_a_graph_has_recorded_keeps_its_counters(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """The graph runs on with their addresses, which must come into no other hands."""
    runner = KernelRunner()
    with monkeypatch.context() as recording:
        recording.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
        launch(runner, "recorded", counter_bytes=4)
        launch(runner, "without counters")
    for index in range(MOST_BOUND):
        launch(runner, str(index))
    assert gpu.alive == {"recorded", *map(str, range(MOST_BOUND))}
    launch(runner, "recorded", counter_bytes=4)
    assert gpu.alive == {"recorded", *map(str, range(1, MOST_BOUND))}
