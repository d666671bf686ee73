"""Metrics count every row that decoded, and no prompt, whatever happened to the request."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from hybridge.runtime.serving.loop import ServingLoop
from hybridge.runtime.speculation import Proposal
from tests.runtime.serving.test_speculation import speculating
from tests.runtime.serving.toy_loop import make_request, run_all
from tests.runtime.toy_engine import HYBRID
from tests.runtime.toy_paged_engine import VOCAB


def rows_that_ran(loop: ServingLoop, monkeypatch: pytest.MonkeyPatch) -> Counter[int]:
    """Rows with draft tokens of all steps that are committed from now on, by the number of these."""
    found, commit = Counter[int](), loop.scheduler.commit

    def counted(plan, accepted):
        found.update(len(row.draft_tokens) for row in plan.rows if row.draft_tokens)
        commit(plan, accepted)

    monkeypatch.setattr(loop.scheduler, "commit", counted)
    return found


@pytest.mark.parametrize(("prompt", "new"), [(1, 1), (7, 1), (13, 1), (1, 5), (7, 5)])
def test_a_prompt_is_no_decoded_row(prompt: int, new: int) -> None:
    """Its chunks are of 6 tokens, so that the last one is of a single token."""
    loop, _, _ = speculating(HYBRID, [0], max_rows=2, max_tokens=6)
    loop.add(make_request(list(range(prompt)), new, speculative_tokens=0))
    run_all(loop)
    assert loop.speculation.rows == loop.speculation.chosen[0] == new - 1


def test_rows_of_a_request_that_is_cancelled_in_its_step(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, _, _ = speculating(HYBRID, [2, 0], ahead=True)
    found = rows_that_ran(loop, monkeypatch)
    ids = [loop.add(make_request([1, 2, 3], 20)), loop.add(make_request([4, 5], 20))]
    for _ in range(4):
        loop.step()
    accepted = loop.speculation.accepted
    loop.cancel(ids[0])
    loop.cancel(ids[1])
    assert not loop.busy and len(found) and loop.speculation.chosen == found
    assert loop.speculation.proposed == sum(count * rows for count, rows in found.items())
    assert loop.speculation.accepted == accepted


def test_rows_whose_token_cannot_be_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, _, drafter = speculating(HYBRID, [2])
    found = rows_that_ran(loop, monkeypatch)
    loop.add(make_request([1, 2], 9))
    drafter.propose = lambda requests: [Proposal((1,), np.eye(VOCAB)[:1])]
    assert [output for output in run_all(loop) if output.error]
    assert loop.speculation.chosen == found == {1: 1} and loop.speculation.accepted == 0
