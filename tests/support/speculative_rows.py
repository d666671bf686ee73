"""Kernel calls over rows of draft tokens: slots in random order in poisoned pools, with padding rows among them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from hybridge.trt_plugins.catalog import SPECULATIVE_OPS
from hybridge.trt_plugins.reference.causal_conv1d import causal_conv1d
from hybridge.trt_plugins.reference.gated_delta_rule import gated_delta_rule
from hybridge.trt_plugins.reference.selective_scan import selective_scan
from hybridge.trt_plugins.reference.speculative import speculative_reference
from hybridge.trt_plugins.reference.update_ssm_state import update_ssm_state
from tests.support.kernel_calls import run_op

NAN = float("nan")
REFERENCES: dict[str, Callable] = {
    "causal_conv1d": causal_conv1d,
    "update_ssm_state": update_ssm_state,
    "gated_delta_rule": gated_delta_rule,
    "selective_scan": selective_scan,
}
_TOKEN_INPUTS = {
    "causal_conv1d": (0,),
    "update_ssm_state": (0, 2, 3, 5),
    "gated_delta_rule": range(5),
    "selective_scan": (0, 2, 3, 5),
}


@dataclass(frozen=True)
class DraftRows:
    """Tensors about rows on the GPU. padding: rows without a slot, whose tokens must not be touched."""

    starts: torch.Tensor
    slots: torch.Tensor
    accepted: torch.Tensor
    padding: tuple[int, ...]

    @property
    def lengths(self) -> list[int]:
        return torch.diff(self.starts).tolist()

    def tokens(self, row: int) -> slice:
        return slice(int(self.starts[row]), int(self.starts[row + 1]))

    def read_slot(self, row: int) -> int:
        columns = self.slots.shape[1]
        return int(self.slots[row, min(max(int(self.accepted[row]), 1), columns) - 1])

    def written(self) -> list[int]:
        """Every slot that the call writes."""
        found: list[int] = []
        for row, length in enumerate(self.lengths):
            if row in self.padding:
                continue
            own = [self.read_slot(row)] if length > self.slots.shape[1] else self.slots[row, :length].tolist()
            found += [slot for slot in own if slot >= 0]
        return sorted(found)


def draft_rows(lengths: Sequence[int], draft_slots: int, padding: tuple[int, ...] = (), seed: int = 0) -> DraftRows:
    """Rows of ``lengths`` tokens whose last call had 0 to ``draft_slots`` + 1 tokens accepted.

    Every third slot of a second column is -1: the state after that token is not kept.
    """
    generator = torch.Generator().manual_seed(seed)
    count = len(lengths)
    slots = torch.randperm(count * draft_slots + 3, generator=generator)[: count * draft_slots].view(count, draft_slots)
    accepted = torch.randint(0, draft_slots + 2, (count,), generator=generator)
    if draft_slots > 1:
        for row in range(0, count, 3):
            if int(accepted[row].clamp(1, draft_slots)) != 2:
                slots[row, 1] = -1
    slots[list(padding)] = -1
    return _rows(lengths, slots, accepted.tolist(), padding)


def held_rows(lengths: Sequence[int], slots: Sequence[int]) -> DraftRows:
    """Rows whose states stay as they are: each slot lies in a column that no token of the row writes."""
    columns = max(lengths) + 1
    table = torch.full((len(lengths), columns), -1)
    table[:, -1] = torch.tensor(slots)
    return _rows(lengths, table, [columns] * len(lengths), ())


def advancing_rows(lengths: Sequence[int], slots: Sequence[int], right: Sequence[int]) -> DraftRows:
    """The same tokens, of which the first ``right`` of each row advance its state: the others are a padding row."""
    columns = max(lengths)
    table = torch.full((2 * len(lengths), columns), -1)
    for row, (slot, count) in enumerate(zip(slots, right, strict=True)):
        table[2 * row, count - 1] = slot
    parts = [part for n, count in zip(lengths, right, strict=True) for part in (count, n - count)]
    accepted = [count for count in right for _ in range(2)]
    return _rows(parts, table, accepted, tuple(range(1, len(parts), 2)))


def _rows(lengths: Sequence[int], slots: torch.Tensor, accepted: Sequence[int], padding: tuple[int, ...]) -> DraftRows:
    starts = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()])
    starts, slots, counts = (tensor.to("cuda", torch.int32) for tensor in (starts, slots, torch.tensor(accepted)))
    return DraftRows(starts, slots, counts, padding)


@dataclass(frozen=True)
class Call:
    """tokens and weights: the operator's inputs in order, None for the lengths. pool: index of the pool among them."""

    op: str
    inputs: list[torch.Tensor | None]
    pool: int
    attributes: dict[str, object]

    def run(self, rows: DraftRows, in_place: bool = True) -> tuple[torch.Tensor, torch.Tensor]:
        """y and the pool afterwards; what is not written is NaN in y, and out of place in the pool too."""
        first, before = self.inputs[2 if self.op == "gated_delta_rule" else 0], self.inputs[self.pool]
        assert first is not None and before is not None
        y, pool = torch.full_like(first, NAN, memory_format=torch.contiguous_format), before.clone()
        after = pool if in_place else torch.full_like(pool, NAN)
        inputs = [*self.inputs[: self.pool], pool, *self.inputs[self.pool + 1 :]]
        run_op(self.op, inputs, [y, after], self.attributes, rows.starts, rows.slots, rows.accepted)
        return y, after

    def expected(self, rows: DraftRows) -> tuple[torch.Tensor, torch.Tensor]:
        """The same in float64, zeros at tokens of padding rows."""
        spec = SPECULATIVE_OPS[self.op]
        wide = [None if tensor is None else tensor.double() for tensor in self.inputs[:-1]]
        attributes = spec.complete_attributes(self.attributes).values()
        return speculative_reference(spec, REFERENCES[self.op])(
            *wide, rows.starts, rows.slots, rows.accepted, *attributes
        )

    def with_tokens(self, part: slice) -> Call:
        """The call of some of the tokens."""
        token_inputs = _TOKEN_INPUTS[self.op]
        cut = [t[part] if i in token_inputs and t is not None else t for i, t in enumerate(self.inputs)]
        return replace(self, inputs=cut)


def relative(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found.double() - expected.double()).norm() / expected.double().norm().clamp_min(1e-30))


def check(call: Call, rows: DraftRows, y_tolerance: float, state_tolerance: float, in_place: bool = True) -> None:
    """Tokens and written slots against float64; padding rows' tokens and all other slots bit for bit as they were."""
    y, after = call.run(rows, in_place)
    expected_y, expected = call.expected(rows)
    live = torch.ones(len(y), dtype=torch.bool)
    for row in rows.padding:
        live[rows.tokens(row)] = False
    assert relative(y[live.to(y.device)], expected_y[live.to(y.device)]) <= y_tolerance, "y"
    assert y[~live.to(y.device)].isnan().all(), "y of a padding row"
    written, before = rows.written(), call.inputs[call.pool]
    assert before is not None
    for slot in written:
        assert relative(after[slot], expected[slot]) <= state_tolerance, f"slot {slot}"
    others = [slot for slot in range(len(after)) if slot not in written]
    kept = before[others] if in_place else torch.full_like(before[others], NAN)
    assert torch.equal(after[others].nan_to_num(9.0), kept.nan_to_num(9.0)), "a slot without an owner"
