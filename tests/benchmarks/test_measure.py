"""Spreads, turns and what a child process used."""

from __future__ import annotations

import pytest

from benchmarks.measure import Spread, run_measured, take_turns


def test_a_spread_holds_the_median_and_the_range() -> None:
    assert Spread.of([3, 1, 10]).to_json() == {"median": 3.0, "min": 1.0, "max": 10.0, "repeats": 3}


def test_ratios_are_formed_within_a_repeat() -> None:
    assert Spread.of_ratios([4.0, 9.0], [2.0, 3.0]) == Spread(2.5, 2.0, 3.0, 2)


def test_contestants_take_turns_and_warm_up_uncounted() -> None:
    order: list[str] = []

    def contestant(name: str) -> float:
        order.append(name)
        return float(len(order))

    values = take_turns({"a": lambda: contestant("a"), "b": lambda: contestant("b")}, repeats=2, warmup=1)
    assert order == ["a", "b"] * 3
    assert values == {"a": [3.0, 5.0], "b": [4.0, 6.0]}


def test_a_child_process_is_accounted_for_by_itself() -> None:
    size = 80 * 2**20
    mine = bytearray(b"1") * size
    small = run_measured(("-c", "print('small')"))
    large = run_measured(("-c", f"data = bytearray({size}); data[::4096] = b'1' * len(data[::4096])"))
    assert small.output == "small\n"
    assert large.peak_rss > size > small.peak_rss
    assert large.wall_s > 0
    assert len(mine) == size


def test_a_child_that_fails_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="exit code 7"):
        run_measured(("-c", "import sys; sys.exit(7)"))
