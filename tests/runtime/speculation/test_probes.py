"""When something that is not expected to pay is tried."""

from __future__ import annotations

from itertools import pairwise

from hybridge.runtime.speculation.probes import FIRST_PROBE, MOST_APART, Probes


def tries(pays: list[bool]) -> list[int]:
    probes = Probes()
    return [step for step, each in enumerate(pays, 1) if not probes.skips(each)]


def test_tries_come_farther_and_farther_apart() -> None:
    found = tries([False] * 400)
    assert found[:4] == [16, 48, 112, 176]
    assert all(later - earlier == MOST_APART for earlier, later in pairwise(found[2:]))


def test_draft_tokens_that_pay_are_always_tried_and_reset_the_count() -> None:
    unpaid = [False] * 100
    first = [step for step in tries(unpaid) if step <= 100]
    found = tries([*unpaid, True, True, *unpaid])
    assert found == [*first, 101, 102, *(102 + step for step in first)]
    assert first[0] == FIRST_PROBE
