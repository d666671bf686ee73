"""States advanced by the accepted draft tokens alone, against float64 step loops over these tokens."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ops.cases import delta_case, ssm_case
from tests.ops.oracle import DeltaCase, SsmCase, delta_step_loop, relative_error, ssm_step_loop
from tests.support.effort import examples
from tests.support.replay import ReplayFactors, advance_states, delta_factors, ssm_factors

ROWS, TIME = 3, 6
ACCEPTED = st.lists(st.integers(0, TIME), min_size=ROWS, max_size=ROWS)


def ssm_replay(case: SsmCase) -> tuple[ReplayFactors, torch.Tensor]:
    x, A, B, dt, bias, state = map(torch.from_numpy, (case.x, case.A, case.B, case.dt, case.dt_bias, case.state))
    return ssm_factors(x, A, B, torch.nn.functional.softplus(dt + bias)), state


def delta_replay(case: DeltaCase) -> tuple[ReplayFactors, torch.Tensor]:
    k, v, g, beta, state = map(torch.from_numpy, (case.k, case.v, case.g, case.beta, case.state))
    return delta_factors(k, v, g, beta, state, 1), state


@settings(max_examples=examples(30), deadline=None)
@given(ACCEPTED, st.integers(0, 5), st.booleans())
def test_mamba_states_equal_the_step_loop(accepted: list[int], seed: int, adversarial: bool) -> None:
    case = ssm_case((TIME,) * ROWS, TIME, adversarial=adversarial, seed=seed)
    factors, state = ssm_replay(case)
    found = advance_states(state, factors, torch.tensor(accepted, dtype=torch.int32)).numpy()
    _, expected = ssm_step_loop(replace(case, context_lengths=np.array(accepted, np.int32)))
    assert relative_error(found, expected) < 1e-12


@settings(max_examples=examples(30), deadline=None)
@given(ACCEPTED, st.integers(0, 5), st.sampled_from(["head", "key_channel"]), st.booleans())
def test_delta_states_equal_the_step_loop(accepted: list[int], seed: int, decay: str, adversarial: bool) -> None:
    adversarial &= decay == "head"
    case = delta_case((TIME,) * ROWS, TIME, decay=decay, adversarial=adversarial, seed=seed)
    factors, state = delta_replay(case)
    found = advance_states(state, factors, torch.tensor(accepted, dtype=torch.int32)).numpy()
    _, expected = delta_step_loop(replace(case, context_lengths=np.array(accepted, np.int32)))
    assert relative_error(found, expected) < 1e-10


def test_rejected_tokens_reach_no_state() -> None:
    factors, state = ssm_replay(ssm_case((TIME,) * ROWS, TIME))
    accepted = torch.tensor([2, 0, TIME + 3], dtype=torch.int32)
    expected = advance_states(state, factors, accepted)
    for tensor in (factors.log_decay, factors.left, factors.right):
        tensor[0, 2:] = float("nan")
        tensor[1] = float("nan")
    assert torch.equal(advance_states(state, factors, accepted), expected)
    assert torch.equal(expected[1], state[1])


# The shapes of Nemotron-H and Qwen3-Next; a draft token may take 3 % of a state.
@pytest.mark.parametrize("family", ["mamba", "delta"])
def test_a_draft_token_takes_few_per_cent_of_a_state(family: str) -> None:
    def zeros(*shape: int) -> torch.Tensor:
        return torch.zeros(1, 1, *shape)

    if family == "mamba":
        factors, state = ssm_factors(zeros(128, 64), torch.zeros(128), zeros(8, 128), zeros(128)), 128 * 64 * 128
    else:
        tokens = (zeros(16, 128), zeros(32, 128), zeros(32, 1), zeros(32))
        factors, state = delta_factors(*tokens, torch.zeros(1, 32, 128, 128), 1), 32 * 128 * 128
    assert factors.numbers_of_token <= 0.03 * state
