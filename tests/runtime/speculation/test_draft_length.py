"""The count of draft tokens follows the measured acceptance, within its bounds."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridge.runtime.speculation import DraftLength
from hybridge.runtime.speculation.draft_length import expected_tokens
from tests.support.effort import examples


@pytest.mark.parametrize("acceptance", [0.0, 0.3, 0.8, 1.0])
def test_expected_tokens_are_those_of_a_simulation(acceptance: float) -> None:
    rng = np.random.default_rng(2)
    right = rng.random((200_000, 4)) < acceptance
    means = 1 + np.cumprod(right, axis=1).cumsum(axis=1).mean(axis=0)
    np.testing.assert_allclose(expected_tokens(acceptance, 4), [1, *means], atol=0.02)


@settings(deadline=None, max_examples=examples(60))
@given(st.integers(0, 8), st.floats(0, 1), st.lists(st.integers(0, 8), max_size=60))
def test_counts_are_bounded_and_repeat(most: int, cost: float, history: list[int]) -> None:
    first, second = DraftLength(most, cost), DraftLength(most, cost)
    for accepted in history:
        count = first.choose()
        assert count == second.choose() and 0 <= count <= most
        for each in (first, second):
            each.observe(count, min(accepted, count))


def test_all_right_leads_to_the_most_and_all_wrong_to_probes() -> None:
    good, bad, counts = DraftLength(6, 0.1), DraftLength(6, 0.1), []
    for _ in range(60):
        count = good.choose()
        good.observe(count, count)
        counts.append(bad.choose())
        bad.observe(counts[-1], 0)
    assert good.choose() == 6
    assert set(counts[-34:]) == {0, 1} and counts[-34:].count(1) in (2, 3)


def test_a_sequence_recovers_when_its_text_begins_to_repeat() -> None:
    count = DraftLength(5, 0.1)
    for _ in range(40):
        count.observe(count.choose(), 0)
    for _ in range(200):
        chosen = count.choose()
        count.observe(chosen, chosen)
    assert count.choose() == 5


def test_foreseen_tokens_end_the_wait_for_a_try_within_four_steps() -> None:
    """And those that were not foreseen prevent all but few tries."""
    good, bad = (DraftLength(5, 0.5, foresees=True) for _ in range(2))
    for count in (good, bad):
        count.foresee([False] * 20)
        assert count.choose() == 0
    good.foresee([True] * 20)
    assert [good.choose() for _ in range(4)] == [0, 0, 0, 1]
    counts = []
    for _ in range(500):
        bad.foresee([False])
        counts.append(bad.choose())
    assert set(counts) == {0, 1} and sum(counts) <= 10


def test_the_estimate_is_the_share_of_accepted_draft_tokens() -> None:
    """Geometric trials of probability 0.7, cut at 5: the estimate is unbiased, except for its short memory."""
    rng, count, seen = np.random.default_rng(5), DraftLength(5, 0.1), []
    for _ in range(4000):
        count.observe(5, int(np.cumprod(rng.random(5) < 0.7).sum()))
        seen.append(count.acceptance)
    assert abs(np.mean(seen[100:]) - 0.7) < 0.01


def test_a_sequence_begins_with_the_usual_acceptance() -> None:
    first = [DraftLength(6, 0.4, usual=usual).choose() for usual in (0.1, 0.5, 0.95)]
    assert first[0] == 0 < first[1] < first[2] == 6


def test_a_fixed_count_stays() -> None:
    count = DraftLength(3, 1.0, adaptive=False)
    count.observe(3, 0)
    assert count.choose() == 3
