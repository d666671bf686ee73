"""Which of the two ways costs less for an operator, and what a caller asks for in its place."""

from __future__ import annotations

import pytest

from hybridge.artifact.errors import EngineError
from hybridge.runtime.engines.rollback.modes import AUTO, REPLAY, SNAPSHOT, OperatorCost, chosen_modes

# A state of Mamba2 at 128 heads x 64 x 128 in float32, and x, B, C and dt of a token in bfloat16.
MAMBA2 = OperatorCost(128 * 64 * 128 * 4, 2 * (128 * 64 + 2 * 8 * 128 + 128))


def test_the_mode_that_moves_fewer_bytes_is_chosen() -> None:
    assert MAMBA2.cheaper_mode == REPLAY
    # A convolution of 4 columns has a state of four tokens, one of 2 columns of two.
    assert [OperatorCost(width * 20480, 20480).cheaper_mode for width in (4, 3, 2)] == [REPLAY, REPLAY, SNAPSHOT]


@pytest.mark.parametrize("tokens", [2, 5, 9])
def test_the_choice_is_that_of_the_bytes_counted_one_by_one(tokens: int) -> None:
    for state, token in ((100, 20), (100, 33), (100, 34), (100, 90)):
        copied = state + state
        snapshot = state + tokens * state + copied
        replay = state + tokens * (token + token) + tokens * token + state + state
        assert (OperatorCost(state, token).cheaper_mode == SNAPSHOT) == (snapshot < replay)


def test_explicit_options_come_first() -> None:
    costs = {"conv": OperatorCost(100, 90), "scan": MAMBA2}
    assert chosen_modes(costs, AUTO) == {"conv": SNAPSHOT, "scan": REPLAY} == chosen_modes(costs, {})
    assert chosen_modes(costs, REPLAY) == {"conv": REPLAY, "scan": REPLAY}
    assert chosen_modes(costs, {"scan": SNAPSHOT}) == {"conv": SNAPSHOT, "scan": SNAPSHOT}
    with pytest.raises(EngineError, match="recurrent operators conv, scan, found 'rule': name one of these"):
        chosen_modes(costs, {"rule": REPLAY})


def test_what_cannot_be_replayed_is_copied_and_a_replay_of_it_refused() -> None:
    costs = {"conv": OperatorCost(100, None), "scan": MAMBA2}
    assert chosen_modes(costs, AUTO) == {"conv": SNAPSHOT, "scan": REPLAY}
    with pytest.raises(EngineError, match="a mode other than 'replay' for conv"):
        chosen_modes(costs, REPLAY)
