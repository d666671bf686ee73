"""Recurrent operators with rings, token by token, against all tokens at once in float64."""

import math

import pytest
import torch

from hybridge.trt_plugins.reference.ring import flushed_state, ring_step
from hybridge.trt_plugins.specs.ring import RING
from tests.support.ring_calls import DENSE, STATE, RingCase, delta_case, ssm_case

FLOAT64 = 1e-10


def cases() -> dict[str, RingCase]:
    double, shape = torch.float64, (3, 2 * RING + 5)
    return {
        "mamba2": ssm_case(*shape, 4, 2, 5, 7, double, "cpu"),
        "delta rule": delta_case(*shape, 4, 2, 5, 3, double, "cpu"),
        "key channels": delta_case(*shape, 2, 2, 5, 3, double, "cpu", channels=True),
        "not normalised": delta_case(*shape, 2, 1, 5, 3, double, "cpu", normed=False),
    }


@pytest.mark.parametrize("name", cases())
def test_tokens_one_by_one_are_all_tokens_at_once(name):
    """Three rows, of which each is in another place of its ring: row r begins r steps later."""
    case = cases()[name]
    case.state = case.state.double()
    ring, lengths = case.rings(3), torch.zeros(3, dtype=torch.int64)
    tokens, done, states_written = case.inputs[0].shape[1], [0, 0, 0], 0
    found: list[list[torch.Tensor]] = [[], [], []]
    state = case.state
    for step in range(tokens):
        rows = [row for row in range(3) if row <= step]
        inputs = case.token(rows, [done[row] for row in rows])
        inputs[STATE[case.name]] = state[rows]
        one = torch.ones(len(rows), dtype=torch.int32)
        y, after, added = ring_step(
            case.name, DENSE[case.name], [*inputs, one], [part[rows] for part in ring], lengths[rows], case.attributes
        )
        full = lengths[rows] == RING - 1
        # The state is written only when its ring is full.
        assert torch.equal(after[~full], state[rows][~full])
        states_written += int(full.sum())
        state = state.index_copy(0, torch.tensor(rows), after)
        ring = [part.index_copy(0, torch.tensor(rows), new) for part, new in zip(ring, added, strict=True)]
        lengths[rows] = torch.where(full, 0, lengths[rows] + 1)
        for row, value in zip(rows, y, strict=True):
            found[row].append(value)
            done[row] += 1
    now = flushed_state(case.name, state, [part.nan_to_num() for part in ring], lengths)
    assert states_written == 3 * 2
    for row in range(3):
        y, expected = case.expected(row, done[row])
        torch.testing.assert_close(torch.stack(found[row]), y, rtol=FLOAT64, atol=FLOAT64)
        torch.testing.assert_close(now[row], expected, rtol=FLOAT64, atol=FLOAT64)


def test_what_is_beyond_a_ring_s_length_is_not_read():
    case = cases()["mamba2"]
    ring = case.rings(3)
    assert all(math.isnan(float(part.flatten()[0])) for part in ring)
    assert torch.equal(flushed_state(case.name, case.state, ring, torch.zeros(3)), case.state)
