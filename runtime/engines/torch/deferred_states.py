"""The states of deferred rows on the torch engine: memory for what their tokens store, and what advances them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from hybridge.artifact.errors import EngineError
from hybridge.runtime.engines.packed_inputs import PackedInputs
from hybridge.runtime.engines.rollback.draft_inputs import DraftInputs, StoredRows, draft_inputs
from hybridge.runtime.engines.rollback.modes import REPLAY, SNAPSHOT, OperatorCost
from hybridge.runtime.engines.rollback.rollback import Rollback, SnapshotSlots
from hybridge.runtime.engines.torch.advance_step import AdvanceShape, AdvanceStep, SnapshotPools
from hybridge.runtime.engines.torch.device import TorchDevice
from hybridge.runtime.engines.torch.graph import STORED_TOKENS
from hybridge.runtime.engines.torch.packed_buffers import StepSize
from hybridge.runtime.engines.torch.paged_decode import padded_rows
from hybridge.runtime.engines.torch.paged_pools import TorchPools
from hybridge.runtime.engines.torch.stored_calls import StoredCalls, TokenMemory

# Rows of this many tokens can be deferred: their slots are those of one kernel call.
MOST_DEFERRED = 16


@dataclass(frozen=True)
class RollbackLimits:
    """rows: maximum of deferred rows per step. tokens: per deferred row. capacity: tokens per step, with padding."""

    rows: int
    tokens: int
    capacity: int


class DeferredStates:
    """Memory for deferred states, the step that waits, and its advance; the latter is the ``RollbackMemory``.

    operators: the recurrent operator of each pool of states. state_bytes: of a slot of it. snapshots: operators with a
    snapshot after each token; the others are replayed.
    """

    def __init__(
        self,
        device: TorchDevice,
        limits: RollbackLimits,
        operators: Mapping[str, str],
        state_bytes: Mapping[str, int],
        snapshots: frozenset[str] = frozenset(),
    ) -> None:
        self.limits, self.snapshots = limits, snapshots
        self._device, self._operators, self._state_bytes = device, operators, state_bytes
        self._memory = TokenMemory(device, limits.capacity)
        # A number for the addresses of the calls' inputs; steps with equal addresses share their advance step.
        self._layouts: dict[tuple[object, ...], int] = {}
        self._steps: dict[tuple[AdvanceShape, int], AdvanceStep] = {}
        self._pools: SnapshotPools | None = None
        self._rows: StoredRows | None = None
        self._calls: StoredCalls | None = None
        self.rollback = Rollback()

    @property
    def advance_steps(self) -> Sequence[AdvanceStep]:
        """The advance steps that have been prepared on a GPU."""
        return tuple(self._steps.values())

    @property
    def snapshot_slots(self) -> Mapping[str, int]:
        """By pool, slots for the states after each token of each row."""
        slots = self.limits.rows * self.limits.tokens
        return {pool: slots for pool, operator in self._operators.items() if operator in self.snapshots}

    @property
    def snapshot_bytes(self) -> int:
        """Bytes of these slots."""
        return sum(slots * self._state_bytes[pool] for pool, slots in self.snapshot_slots.items())

    @property
    def nbytes(self) -> int:
        """All that the tokens of a step can store."""
        return self.limits.capacity * self._memory.token_bytes + self.snapshot_bytes

    @property
    def token_bytes(self) -> int:
        """Bytes per token of a deferred row, known after a step has run."""
        return self._memory.token_bytes + sum(self._state_bytes[pool] for pool in self.snapshot_slots)

    @property
    def modes(self) -> dict[str, str]:
        """The rollback mode of each recurrent operator."""
        return {name: SNAPSHOT if name in self.snapshots else REPLAY for name in sorted(set(self._operators.values()))}

    def costs(self) -> dict[str, OperatorCost]:
        """Costs of the operators that the last step called."""
        found: dict[str, OperatorCost] = {}
        assert self._calls is not None
        for operator in set(self._operators.values()):
            # Each call has the state of one layer, which may have two pools.
            calls = [call.token_bytes for call in self._calls.calls if call.operator.name == operator]
            states = [self._state_bytes[pool] for pool, own in self._operators.items() if own == operator]
            found[operator] = OperatorCost(sum(states) // len(calls), max(calls))
        return found

    def bind(self, pools: TorchPools) -> None:
        """Advance the states of ``pools`` from now on."""
        self.forget()
        self._steps.clear()
        first, tensors = pools.sizes.num_slots, [pools.tensors[name] for name in sorted(self.snapshot_slots)]
        nowhere = first + self.limits.rows * self.limits.tokens
        self._pools = SnapshotPools(tensors, SnapshotSlots(first, self.limits.tokens), nowhere)

    def forget(self) -> None:
        """A new step begins; states that did not advance stay unchanged."""
        self._rows = self._calls = None
        self.rollback.forget()

    def inputs(self, inputs: PackedInputs) -> DraftInputs:
        """A step with deferred rows; EngineError when they are more than there is memory for."""
        assert self._pools is not None and inputs.deferred is not None
        count = int(inputs.deferred.sum())
        if count > self.limits.rows:
            raise EngineError(
                f"expected at most {self.limits.rows} deferred rows in a step, found {count}: prepare for more"
            )
        found, self._rows = draft_inputs(inputs, self.limits.tokens, self._pools.slots)
        return found

    def calls(self, size: StepSize, tensors: Mapping[str, torch.Tensor]) -> StoredCalls:
        """The receiver of the calls of a step of that size with the inputs ``tensors``.

        EngineError when there is no memory for this many tokens.
        """
        if size.stored > self.limits.capacity:
            raise EngineError(
                f"expected at most {self.limits.capacity} tokens in a step of deferred rows, found {size.stored}: "
                "prepare for more rows"
            )
        return StoredCalls(self._memory, size.stored, tensors[STORED_TOKENS] if size.chooses else None)

    def ran(self, calls: StoredCalls) -> None:
        """The step of ``inputs`` was launched with these calls."""
        self._calls = calls
        assert self._rows is not None
        rows = padded_rows(len(self._rows.starts), self.limits.rows)
        advance = self._step(AdvanceShape(rows, calls.tokens, self.limits.tokens), calls)
        advance.prepare(self._rows)
        self.rollback.defer(self._rows.deferred, advance)

    def advance(self, accepted: np.ndarray) -> None:
        """As ``PagedEngine.advance``."""
        self.rollback.advance(accepted.tolist())

    def _step(self, shape: AdvanceShape, calls: StoredCalls) -> AdvanceStep:
        assert self._pools is not None
        if calls.number is None:
            calls.number = self._layouts.setdefault(calls.layout, len(self._layouts))
        key = shape, calls.number
        step = self._steps.get(key)
        if step is None:
            with self._device.active():
                step = AdvanceStep(self._device, self._memory, calls.calls, self._pools, shape)
            if self._device.is_gpu:
                self._steps[key] = step
        return step
