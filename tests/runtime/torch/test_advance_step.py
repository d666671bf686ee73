"""Which calls of an advance may run at the same time."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

pytest.importorskip("torch", reason="the torch engine needs torch")

import torch
from hypothesis import given
from hypothesis import strategies as st

from hybridge.runtime.engines.torch.advance_step import parts_of
from hybridge.runtime.engines.torch.step_rows import StepRows
from hybridge.runtime.engines.torch.stored_calls import InputLayout, Memory, Output, StoredCall


class Operator:
    name = "none"

    def advanced(self, given: Sequence[object], rows: StepRows, slots: torch.Tensor, accepted: torch.Tensor) -> tuple:
        raise AssertionError("nothing runs here")


@st.composite
def needs(draw: st.DrawFn) -> list[set[int]]:
    """Of each call the calls before it whose outputs it reads."""
    count = draw(st.integers(1, 12))
    return [draw(st.sets(st.integers(0, index - 1), max_size=3)) if index else set() for index in range(count)]


def call_that_needs(others: set[int]) -> StoredCall:
    sources = [Memory(0, 4, torch.float32), *(Output(other, 0) for other in sorted(others))]
    layouts = {index: InputLayout(source, 4, 0, (4,), (1,)) for index, source in enumerate(sources)}
    return StoredCall(Operator(), (None,) * len(sources), layouts, 16)


def reachable(calls: list[set[int]], first: int) -> set[int]:
    """Calls that ``first`` is connected with, in either direction."""
    found, new = set(), {first}
    while new:
        call = new.pop()
        found.add(call)
        near = calls[call] | {index for index, needed in enumerate(calls) if call in needed}
        new |= near - found
    return found


@given(needs())
def test_a_part_is_all_calls_that_depend_on_each_other(calls: list[set[int]]) -> None:
    parts = parts_of([call_that_needs(needed) for needed in calls])
    for index in range(len(calls)):
        assert {other for other in range(len(calls)) if parts[other] == parts[index]} == reachable(calls, index)
    assert sorted(set(parts)) == list(range(len(set(parts))))
