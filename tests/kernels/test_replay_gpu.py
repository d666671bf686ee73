"""States that stay while draft tokens are checked, then advanced by those that were right: the speculative kernels
with other rows over the same tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from tests.kernels.test_drafts_gpu import BF16, F32, TOLERANCE, conv_call, delta_call, ssm_call
from tests.support.replay import advance_states, delta_factors, ssm_factors
from tests.support.speculative_rows import Call, DraftRows, advancing_rows, check, held_rows

pytestmark = pytest.mark.gpu

LENGTHS, SLOTS = (5, 2, 1, 4, 5), (7, 0, 11, 3, 4)
RIGHT = (3, 2, 1, 1, 5)
MAKERS: dict[str, Callable[..., Call]] = {"conv": conv_call, "ssm": ssm_call, "delta": delta_call}


def kept_rows() -> DraftRows:
    """The same rows in the snapshot form: a slot after each token, the row's own after its first."""
    rows, columns = held_rows(LENGTHS, SLOTS), max(LENGTHS)
    free = [slot for slot in range(len(SLOTS) * columns) if slot not in SLOTS]
    table = torch.tensor([[slot, *free[row :: len(SLOTS)]] for row, slot in enumerate(SLOTS)])
    return replace(rows, slots=table.to("cuda", torch.int32), accepted=torch.ones_like(rows.accepted))


@pytest.mark.parametrize("state", [F32, BF16])
@pytest.mark.parametrize("op", MAKERS)
def test_deferred_states_advance_to_the_snapshot_of_the_last_accepted_token(op: str, state: torch.dtype) -> None:
    held, kept = held_rows(LENGTHS, SLOTS), kept_rows()
    call = MAKERS[op](kept, dtype=state if op == "conv" else BF16, state=state)
    tolerance = TOLERANCE[BF16 if op == "conv" else state]
    check(call, held, TOLERANCE[BF16], tolerance)
    advancing = advancing_rows(LENGTHS, SLOTS, RIGHT)
    check(call, advancing, TOLERANCE[BF16], tolerance)
    _, after = call.run(advancing)
    _, snapshots = call.run(kept)
    for row, (slot, right) in enumerate(zip(SLOTS, RIGHT, strict=True)):
        assert torch.equal(after[slot], snapshots[int(kept.slots[row, right - 1])])


@pytest.mark.parametrize("op", ["ssm", "delta"])
def test_advanced_states_are_those_of_the_factors(op: str) -> None:
    call = MAKERS[op](kept_rows(), dtype=F32, state=F32)
    _, after = call.run(advancing_rows(LENGTHS, SLOTS, RIGHT))
    begin = 0
    for length, slot, right in zip(LENGTHS, SLOTS, RIGHT, strict=True):
        tensors = [None if t is None else t.double() for t in call.with_tokens(slice(begin, begin + length)).inputs]
        state = tensors[call.pool][slot][None]
        if op == "ssm":
            x, A, B, _, _, dt, bias = tensors[:7]
            step = torch.nn.functional.softplus(dt + bias)
            factors = ssm_factors(x[None], A, B[None], step[None])
        else:
            _, k, v, g, beta = (tensor[None] for tensor in tensors[:5])
            factors = delta_factors(k, v, g, beta, state, use_qk_l2norm=1)
        expected = advance_states(state, factors, torch.tensor([right], device="cuda"))[0]
        assert (after[slot].double() - expected).norm() <= 1e-5 * expected.norm()
        begin += length
