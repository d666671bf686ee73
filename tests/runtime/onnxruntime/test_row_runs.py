"""Splitting a step into runs without padding."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridge.runtime.engines.onnxruntime.row_runs import RowRun, row_runs, token_runs

rows = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2)), min_size=1, max_size=9)


def runs_of(pairs: list[tuple[int, int]]) -> tuple[RowRun, ...]:
    context, past = (np.array(column, np.int32) for column in zip(*pairs, strict=True))
    return row_runs(context, past)


@given(rows)
def test_every_row_with_tokens_is_in_exactly_one_run_that_has_room_for_them(pairs: list[tuple[int, int]]) -> None:
    covered = [row for run in runs_of(pairs) for row in range(run.start, run.stop)]
    assert covered == [row for row, (tokens, _) in enumerate(pairs) if tokens]
    for run in runs_of(pairs):
        lengths = {pairs[row][0] for row in range(run.start, run.stop)}
        assert max(lengths) == run.tokens and run.padded == (len(lengths) > 1)


@given(rows)
def test_runs_of_several_tokens_with_a_past_hold_one_row(pairs: list[tuple[int, int]]) -> None:
    for run in runs_of(pairs):
        has_past = any(pairs[row][1] for row in range(run.start, run.stop))
        assert run.rows == 1 or run.tokens == 1 or not has_past


@pytest.mark.parametrize(
    ("pairs", "expected"),
    [
        ([(1, 4), (1, 9), (1, 0)], [(0, 3, 1)]),
        ([(1, 4), (0, 9), (1, 0)], [(0, 1, 1), (2, 3, 1)]),
        ([(5, 0), (5, 0), (4, 0)], [(0, 3, 5, True)]),
        ([(5, 0), (0, 0), (4, 0)], [(0, 1, 5), (2, 3, 4)]),
        ([(1, 4), (1, 0), (4, 0)], [(0, 2, 1), (2, 3, 4)]),
        ([(128, 0), (128, 0), (9, 0)], [(0, 2, 128), (2, 3, 9)]),
        ([(90, 0), (91, 0), (12, 0), (14, 0)], [(0, 2, 91, True), (2, 4, 14, True)]),
        ([(5, 0), (5, 1), (5, 0)], [(0, 1, 5), (1, 2, 5), (2, 3, 5)]),
        ([(0, 3)], []),
    ],
)
def test_examples(pairs: list[tuple[int, int]], expected: list[tuple]) -> None:
    assert runs_of(pairs) == tuple(RowRun(*run) for run in expected)


@given(st.sets(st.integers(0, 9), min_size=1))
def test_rows_with_one_token_each_make_the_runs_of_the_same_step(chosen: set[int]) -> None:
    assert token_runs(tuple(sorted(chosen))) == runs_of([(int(row in chosen), row) for row in range(10)])
