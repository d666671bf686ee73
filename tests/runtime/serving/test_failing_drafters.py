"""A failing drafter disables drafting for the sequences concerned; output is unaffected."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from hybridge.runtime.speculation import DraftRequest, Proposal
from tests.runtime.serving.test_speculation import speculating
from tests.runtime.serving.toy_loop import answers, make_request, run_all
from tests.runtime.toy_engine import HYBRID
from tests.runtime.toy_paged_engine import VOCAB, toy_greedy

SLOWER = "requests continue without draft tokens, which is slower: "


def raises(requests: Sequence[DraftRequest]) -> list[Proposal]:
    raise ValueError("no memory")


FAILURES: dict[str, tuple[Callable[[Sequence[DraftRequest]], list[Proposal]], str]] = {
    "raises": (raises, "no memory"),
    "too few": (lambda requests: [], "shorter than argument 1"),
    "foreign": (
        lambda requests: [Proposal((VOCAB,)) for _ in requests],
        f"expected proposed tokens from 0 to {VOCAB - 1}, found {VOCAB}: use a drafter with the same tokenizer",
    ),
    "negative": (lambda requests: [Proposal((1, -1)) for _ in requests], f"from 0 to {VOCAB - 1}, found -1"),
    "other probabilities": (
        lambda requests: [Proposal((1,), np.full((1, VOCAB + 3), 0.1)) for _ in requests],
        f"expected probabilities of the model's {VOCAB} tokens, found {VOCAB + 3}",
    ),
}


@pytest.mark.parametrize("failure", FAILURES)
def test_requests_continue_without_draft_tokens(failure: str) -> None:
    """Later requests get draft tokens again; failures are reported once and counted."""
    fails, words = FAILURES[failure]
    loop, engine, drafter = speculating(HYBRID, [2])
    propose = drafter.propose
    prompts = {loop.add(make_request(prompt, 20)): prompt for prompt in ([1, 2], [3])}
    outputs = loop.step() + loop.step()
    proposed = loop.speculation.proposed
    assert proposed
    drafter.propose = fails
    with pytest.warns(RuntimeWarning, match=SLOWER) as caught:
        outputs += loop.step()
    assert len(caught) == 1 and words in str(caught[0].message)
    drafter.propose = propose
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        outputs += loop.step() + loop.step()
        assert loop.speculation.proposed == proposed, "it is asked again for sequences that it has failed"
        prompts[loop.add(make_request([7], 20))] = [7]
        outputs += loop.step() + loop.step()
        assert loop.speculation.proposed > proposed
        drafter.propose = fails
        prompts[loop.add(make_request([8, 9], 20))] = [8, 9]
        outputs += run_all(loop)
    # Of the first two at once, then of each of the others.
    assert loop.speculation.failures == loop.speculation.to_json()["drafter_failures"] == 3
    found = {(id_, 0): tuple(toy_greedy(engine.config, prompt, 20)) for id_, prompt in prompts.items()}
    assert answers(outputs) == found and not [output for output in outputs if output.error]


def test_a_sequence_without_a_request_keeps_its_draft_tokens() -> None:
    """The first request's draft tokens were wrong at first: no draft token is worth its cost, and none is requested."""
    loop, engine, drafter = speculating(HYBRID, [0], adaptive=True, cost=0.4)
    loop.add(make_request([1, 2], 60))
    outputs = [output for _ in range(9) for output in loop.step()]
    calls = drafter.calls
    outputs += loop.step()
    assert drafter.calls == calls
    loop.add(make_request([3], 9))
    outputs += loop.step()
    drafter.propose = raises
    with pytest.warns(RuntimeWarning, match=SLOWER):
        outputs += loop.step()
    requests: list[int] = []

    def propose(given: Sequence[DraftRequest]) -> list[Proposal]:
        requests.extend(each.sequence for each in given)
        return type(drafter).propose(drafter, given)

    drafter.propose = propose
    outputs += run_all(loop)
    assert set(requests) == {0}
    assert answers(outputs) == {
        (0, 0): tuple(toy_greedy(engine.config, [1, 2], 60)),
        (1, 0): tuple(toy_greedy(engine.config, [3], 9)),
    }
