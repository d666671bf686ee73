"""When something that is not expected to pay is tried."""

from __future__ import annotations

from hybridge.runtime.speculation.probes import FEWEST_STEPS, MOST_LOSS, MOST_STEPS, Probes


def tries(losses: list[float], evaluated: int = MOST_STEPS) -> list[int]:
    """The steps, from 1 on, that try what is expected to lose this much in each."""
    probes = Probes(evaluated)
    return [step for step, loss in enumerate(losses, 1) if not probes.waits() and probes.tries(loss)]


def test_tries_lose_no_more_than_the_limit() -> None:
    for loss in (0.0, 0.05, 0.3, 3.0):
        found = tries([loss] * 2000)
        assert found and found[0] > FEWEST_STEPS
        assert len(found) * loss <= MOST_LOSS * 2000, loss
    assert len(tries([0.0] * 170)) == 10
    assert tries([50.0] * 700) == [1 + MOST_STEPS, 1 + 2 * MOST_STEPS], "what is very slow once is tried again, too"


def test_draft_tokens_that_pay_are_tried_in_every_step() -> None:
    assert tries([-0.1] * 5) == [1, 2, 3, 4, 5]
    assert tries([*[0.0] * 16, *[-0.1] * 5, 0.0]) == [17, 18, 19, 20, 21]


def test_what_is_expected_counts_again_after_fewer_steps() -> None:
    """Not often enough for more tries of what loses."""
    assert tries([*[3.0] * 19, *[-0.1] * 10], evaluated=8) == [25, 26, 27, 28, 29]
    assert tries([1.0] * 300, evaluated=8) == [101, 201] == tries([1.0] * 300)
    assert tries([*[3.0] * 20, *[0.2] * 40], evaluated=8) == [45]
