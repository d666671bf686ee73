"""Replays of graphs end early only where the times of every contestant are steady."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import cycle

import pytest

pytest.importorskip("torch", reason="the kernel benchmarks need torch")

from benchmarks.kernels import timing
from benchmarks.kernels.timing import FEWER_REPLAYS, REPLAYS, Recording, replay_times


class _Graph:
    """A graph whose replays take these milliseconds in turn."""

    def __init__(self, times: Sequence[float]) -> None:
        self._times = cycle(times)

    def replay(self) -> float:
        return next(self._times)


@pytest.fixture(autouse=True)
def without_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def milliseconds(work: Callable[[], float]) -> float:
        return work()

    monkeypatch.setattr(timing, "_milliseconds", milliseconds)


def _recording(*times: float) -> Recording:
    return Recording(_Graph(times), 10, ())


@pytest.mark.parametrize(
    ("other", "replays"), [([2.0], FEWER_REPLAYS), ([2.0, 2.03], FEWER_REPLAYS), ([2.0, 2.1], REPLAYS)]
)
def test_one_unsteady_contestant_keeps_all_going(other: list[float], replays: int) -> None:
    found = replay_times({"steady": _recording(1.0, 1.01), "other": _recording(*other)})
    assert {spread.repeats for spread in found.values()} == {replays}
    assert found["steady"].min == pytest.approx(100.0) and found["other"].max == pytest.approx(100.0 * max(other))


def test_a_chosen_number_of_replays_is_kept() -> None:
    assert replay_times({"": _recording(1.0, 2.0)}, repeats=3)[""].repeats == 3
