"""The measured cost is that of the steps, and the count that follows from it is never much worse than none."""

import numpy as np
import pytest

from hybridge.runtime.speculation import DraftLength, StepCost


def measured(seconds: dict[tuple[int, int], float]) -> StepCost:
    """Ten steps of each number of rows and of draft tokens, one after another."""
    cost = StepCost()
    for _ in range(10):
        for (rows, draft_tokens), each in seconds.items():
            cost.observe(rows, draft_tokens, each)
    return cost


@pytest.mark.parametrize(("fixed", "slope"), [(0.1, 0.02), (0.0, 0.5), (0.6, 0.0)])
def test_a_straight_line_is_found_among_delays(fixed: float, slope: float) -> None:
    rng, cost = np.random.default_rng(1), StepCost()
    for _ in range(300):
        draft_tokens = int(rng.integers(0, 5))
        relative = 1 + (fixed + slope * draft_tokens) * (draft_tokens > 0)
        cost.observe(2, 2 * draft_tokens, 0.003 * relative * (1 + 0.05 * rng.standard_normal()))
    for draft_tokens in (1, 2, 4):
        assert cost.relative_time(draft_tokens, 2) == pytest.approx(1 + fixed + slope * draft_tokens, abs=0.1)
    assert cost.relative_time(0, 2) == 1


def test_steps_of_other_numbers_of_rows_are_no_measure() -> None:
    cost = StepCost()
    before = cost.relative_time(4, 2)
    for _ in range(2):
        cost.observe(3, 0, 1.0)
        cost.observe(2, 8, 50.0)
    assert cost.knows(3) and not cost.knows(2) and cost.relative_time(4, 2) == before


def test_times_of_many_rows_do_not_apply_to_one() -> None:
    """Steps of one row with draft tokens take 1.3 times as long, those of eight with a few four times."""
    cost = measured({(1, 0): 1.0, (1, 4): 1.3, (8, 0): 2.0, (8, 4): 8.0})
    assert cost.relative_time(4, 1) == pytest.approx(1.3, abs=0.05)
    assert cost.relative_time(0.5, 8) == pytest.approx(4.0, abs=0.3)  # the draft token counts for one of ten
    assert cost.relative_time(0.5, 5) == cost.relative_time(0.5, 8)


@pytest.mark.parametrize(("share", "most"), [(0.05, 0), (0.2, 8)])
def test_a_few_delayed_steps_change_few_choices(share: float, most: int) -> None:
    """A share of the steps of all kinds takes up to fifty times as long; some kinds are rare."""
    changed = []
    for seed in range(100):
        rng, delayed, exact = np.random.default_rng(seed), StepCost(), StepCost()
        fixed, slope, acceptance = rng.uniform((0.2, 0.0, 0.5), (2.5, 0.2, 1.0))
        for draft_tokens in (0, *rng.choice(8, 300, p=np.array([8, 1, 1, 1, 1, 1, 2, 8]) / 23)):
            seconds = 2e-4 * (1 + (fixed + slope * draft_tokens) * (draft_tokens > 0))
            delayed.observe(1, int(draft_tokens), seconds * (rng.uniform(1.5, 50) if rng.random() < share else 1))
            exact.observe(1, int(draft_tokens), seconds)
        first, second = (DraftLength(7, cost.relative_time, usual=acceptance) for cost in (delayed, exact))
        if first.choose() != second.choose():
            changed.append(seed)
    assert len(changed) <= most, changed


def test_where_most_checks_are_delayed_no_tokens_are_drafted() -> None:
    """Other work delays three of four steps with draft tokens, and no plain ones; without it, all tokens would pay."""
    rng, cost = np.random.default_rng(5), StepCost()
    for _ in range(40):
        cost.observe(1, 0, 1.0)
        cost.observe(1, 7, rng.uniform(8, 40) if rng.random() < 0.75 else 2.0)
    assert DraftLength(7, cost.relative_time, usual=0.95).choose() == 0
    for _ in range(40):
        cost.observe(1, 7, 2.0)
    assert DraftLength(7, cost.relative_time, usual=0.95).choose() == 7


def test_delays_for_other_reasons_change_no_estimate() -> None:
    """The first step of a kind, and up to four of nine later ones."""
    cost = StepCost()
    for seconds in (30.0, 1.0):
        cost.observe(1, 0, seconds)
    for seconds in (500.0, 1.1, 90.0, 1.1, 1.1, 40.0, 70.0, 1.1, 1.1, 20.0):
        cost.observe(1, 4, seconds)
    assert cost.relative_time(4) == pytest.approx(1.1, abs=0.06)


def test_more_draft_tokens_bound_the_time_of_fewer() -> None:
    """Steps of four were delayed each time. A few of eight that seem fast bound no others."""
    cost = measured({(1, 0): 1.0, (1, 2): 1.4, (1, 7): 2.0})
    for seconds in (9.0, 8.8, 8.8, 9.1):
        cost.observe(1, 4, seconds)
    for draft_tokens, expected in ((2, 1.4), (4, 1.7), (7, 2.0)):
        assert cost.relative_time(draft_tokens) == pytest.approx(expected, abs=0.2)
    for _ in range(4):
        cost.observe(1, 8, 1.0)
    assert cost.relative_time(7) > 1.4


@pytest.mark.parametrize("one", [1.01, 0.99])
def test_a_draft_token_among_many_rows_bounds_no_time_that_is_right(one: float) -> None:
    """It seems to take no time at all, perhaps. Four draft tokens per row were delayed in all of a few steps."""
    cost = measured({(64, 0): 1.0, (64, 1): one, (64, 64): 1.4, (64, 448): 3.8})
    assert cost.relative_time(1, 64) == pytest.approx(1.4, abs=0.2)
    for _ in range(4):
        cost.observe(64, 256, 30.0)
        cost.observe(64, 384, 3.4)
    for draft_tokens, expected in ((1, 1.4), (4, 2.6), (7, 3.8)):
        assert cost.relative_time(draft_tokens, 64) == pytest.approx(expected, abs=0.3)


def test_times_that_make_no_sense_give_a_cost_that_does() -> None:
    cost = StepCost()
    for seconds in (0.0, 1.0, 1.0, 1.0, 1000.0):
        cost.observe(1, 0, 1.0)
        cost.observe(1, 2, seconds)
        assert 1 <= cost.relative_time(1) <= cost.relative_time(4) < 20


@pytest.mark.parametrize("acceptance", [0.0, 0.3, 0.6, 0.9])
@pytest.mark.parametrize(("fixed", "slope"), [(0.1, 0.03), (0.4, 0.3), (1.5, 0.5)])
def test_in_the_long_run_it_is_never_slower_than_plain_decoding(acceptance: float, fixed: float, slope: float) -> None:
    """And close to the best count that never changes."""
    rng, cost = np.random.default_rng(3), StepCost()

    def time_of(draft_tokens: int) -> float:
        return 1 + (fixed + slope * draft_tokens) * (draft_tokens > 0)

    count, tokens, seconds = DraftLength(4, cost.relative_time), 0, 0.0
    for step in range(3000):
        chosen = count.choose() if step > 1 else 0
        accepted = int(np.cumprod(rng.random(chosen) < acceptance).sum())
        spent = time_of(chosen) * (1 + 0.1 * abs(rng.standard_normal()))
        cost.observe(1, chosen, spent)
        count.observe(chosen, accepted)
        tokens, seconds = tokens + 1 + accepted, seconds + spent
    plain = 1 / 1.08
    best = max(sum(acceptance**power for power in range(k + 1)) / time_of(k) for k in range(5)) * plain
    # Every 16th step without draft tokens tries one, as texts change; that and the noise of few steps are what is lost.
    assert tokens / seconds >= max(0.88 * plain, 0.85 * best)
