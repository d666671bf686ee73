"""Whether draft tokens of few rows are worth the time that all rows of a step wait for them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from hybridge.runtime.serving.speculator import Speculator
from hybridge.runtime.speculation import DraftRequest, Proposal, SpeculationSettings
from tests.runtime.serving.test_speculation import PartlyRight
from tests.runtime.serving.toy_loop import answers, make_request, run_all, toy_loop
from tests.runtime.toy_engine import HYBRID
from tests.runtime.toy_paged_engine import VOCAB, paged_config, toy_greedy

MOST, NEW = 4, 120


class RightForOne:
    """Correct for the first sequence, without a proposal for all others."""

    def __init__(self, layers: Sequence[str]) -> None:
        self.config, self.first = paged_config(layers), -1

    def propose(self, requests: Sequence[DraftRequest]) -> list[Proposal]:
        if self.first < 0:
            self.first = requests[0].sequence
        return [
            Proposal(tuple(toy_greedy(self.config, each.tokens, each.most)) if each.sequence == self.first else ())
            for each in requests
        ]

    def forget(self, sequence: int) -> None:
        """It knows nothing."""


def steps_with_draft_tokens(
    requests: int,
    time: float,
    monkeypatch: pytest.MonkeyPatch,
    cost: float | None = None,
    new: int = NEW,
):
    """How many steps there were, and how many of them had draft tokens, where one with any takes ``time``."""
    speculation = SpeculationSettings(MOST, RightForOne(HYBRID), draft_token_cost=cost)
    loop, engine = toy_loop(HYBRID, speculation=speculation, max_seq_len=8 + new, memory_bytes=40_000)
    assert loop._speculator is not None
    monkeypatch.setattr(
        loop._speculator.cost, "relative_time", lambda draft_tokens, rows: time if draft_tokens else 1.0
    )
    rng, expected, found = np.random.default_rng(requests), {}, []
    for _ in range(requests):
        prompt = rng.integers(0, VOCAB, 5).tolist()
        expected[loop.add(make_request(prompt, new)), 0] = tuple(toy_greedy(engine.config, prompt, new))
    steps = tried = 0
    while loop.busy:
        found += loop.step()
        steps += 1
        tried += loop.last_plan is not None and any(row.draft_tokens for row in loop.last_plan.rows)
    found += run_all(loop)
    assert answers(found) == expected
    return steps, tried


def test_a_step_skips_checkpoints_that_would_delay_other_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of four rows one gains at most four tokens: with steps of 2.5 times the time all lose, and one of 16 tries."""
    steps, tried = steps_with_draft_tokens(4, 2.5, monkeypatch)
    assert 0 < tried <= steps // 16 + 1


def test_tries_that_do_not_pay_become_fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    """After 16 steps, 32 more, and then 64 more each."""
    steps, tried = steps_with_draft_tokens(4, 2.5, monkeypatch, new=500)
    assert 3 <= tried <= 3 + (steps - 16 - 32) // 64


def test_a_single_row_gets_its_draft_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    _, tried = steps_with_draft_tokens(1, 2.5, monkeypatch)
    assert tried >= NEW // (1 + MOST) - 1


def test_draft_tokens_that_save_time_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    _, tried = steps_with_draft_tokens(4, 1.3, monkeypatch)
    assert tried >= NEW // (1 + MOST) - 2


def test_with_a_given_cost_other_rows_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    _, tried = steps_with_draft_tokens(4, 2.5, monkeypatch, cost=0.1)
    assert tried >= NEW // (1 + MOST) - 2


@pytest.mark.parametrize(("requests", "time"), [(1, 4.2), (4, 2.5)])
def test_sequences_are_not_looked_at_while_all_of_them_wait(
    requests: int, time: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same steps try draft tokens as if every step asked every sequence."""
    asked, ask = [], Speculator.requests
    monkeypatch.setattr(Speculator, "requests", lambda self, *rows: (asked.append(1), ask(self, *rows))[1])
    found = steps_with_draft_tokens(requests, time, monkeypatch, new=300)
    assert found[1] and len(asked) < found[0] // 6
    monkeypatch.setattr(Speculator, "rests", lambda *_: False)
    assert steps_with_draft_tokens(requests, time, monkeypatch, new=300) == found


def test_sequences_are_asked_only_where_look_up_finds_something(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same steps try the same draft tokens as if every step asked every sequence."""
    asked, ask = [], Speculator.requests
    monkeypatch.setattr(Speculator, "requests", lambda self, *rows: (asked.append(1), ask(self, *rows))[1])

    def looked_up() -> tuple[object, int, int]:
        """Answers, draft tokens that ran, and how often sequences were asked."""
        speculation = SpeculationSettings(MOST, draft_token_cost=0.1, shortest=1)
        loop, _ = toy_loop(HYBRID, speculation=speculation, max_seq_len=200, memory_bytes=40_000)
        for start in (1, 2):
            loop.add(make_request([start, 5, 3], 60))
        asked.clear()
        found = answers(run_all(loop))
        assert loop.speculation is not None
        return found, loop.speculation.proposed, len(asked)

    *found, calls = looked_up()
    monkeypatch.setattr(Speculator, "finds_nothing", lambda *_: False)
    *expected, all_calls = looked_up()
    assert found == expected and found[1] > 0 and calls < all_calls


def test_a_request_that_arrives_while_others_wait_gets_draft_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    speculation = SpeculationSettings(MOST, draft_token_cost=1.0)
    loop, _ = toy_loop(HYBRID, speculation=speculation, max_seq_len=200, memory_bytes=40_000)
    assert loop._speculator is not None
    loop.add(make_request([1, 2, 3, 4, 5], 150))
    for _ in range(40):
        loop.step()
    assert loop._speculator._rest
    waited = len(loop._speculator._counts)
    loop.add(make_request([5, 4, 3, 2, 1], 50))
    for _ in range(3):
        loop.step()
    assert len(loop._speculator._counts) == waited + 1
    run_all(loop)


def test_what_one_answer_accepts_is_expected_of_the_next_only_where_no_try_is_needed_to_know() -> None:
    """Look-up, which is never right here, is not tried again; another drafter, as wrong, is."""
    for drafter, again in (("ngram", False), (PartlyRight(paged_config(HYBRID), [0]), True)):
        speculation = SpeculationSettings(MOST, drafter, shortest=1, draft_token_cost=0.3)
        loop, _ = toy_loop(HYBRID, speculation=speculation, max_seq_len=60)
        proposed = []
        for seed in range(5):
            before = loop.speculation.proposed
            loop.add(make_request(np.random.default_rng(seed).integers(0, VOCAB, 30).tolist(), 14))
            run_all(loop)
            proposed.append(loop.speculation.proposed - before)
        assert proposed[0] and bool(proposed[-1]) is again
        assert again or not loop.speculation.accepted
