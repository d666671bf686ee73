"""States that steps leave as they are until it is known which of their tokens are right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from hybridge.artifact.errors import EngineError
from hybridge.runtime.engines.held_modes import REPLAY, SNAPSHOT, OperatorCost
from hybridge.runtime.engines.packed_check import check_accepted
from hybridge.runtime.engines.paged import PackedInputs
from hybridge.runtime.engines.torch.advance_step import AdvanceShape, AdvanceStep, HeldRows, KeptStates
from hybridge.runtime.engines.torch.device import TorchDevice
from hybridge.runtime.engines.torch.graph import HELD_TOKENS
from hybridge.runtime.engines.torch.held_inputs import HeldInputs, held_inputs
from hybridge.runtime.engines.torch.kept_calls import HeldMemory, KeptCalls
from hybridge.runtime.engines.torch.packed_buffers import StepSize
from hybridge.runtime.engines.torch.paged_decode import padded_rows
from hybridge.runtime.engines.torch.paged_pools import TorchPools

# Rows of so many tokens can be held. Their candidates are slots of one kernel call.
MOST_HELD = 16


@dataclass(frozen=True)
class HeldLimits:
    """rows: of one step that are held at most. tokens: of one of them. capacity: of a step, padding included."""

    rows: int
    tokens: int
    capacity: int


class HeldStates:
    """Memory for them, the step that waits, and what advances it.

    operators: the recurrent operator of each pool of states. state_bytes: of a slot of it. kept: operators of which the
    state after each token is kept, in slots of their pools that are nobody's; of the others their inputs are.
    """

    def __init__(
        self,
        device: TorchDevice,
        limits: HeldLimits,
        operators: Mapping[str, str],
        state_bytes: Mapping[str, int],
        kept: frozenset[str] = frozenset(),
    ) -> None:
        self.limits, self.kept = limits, kept
        self._device, self._operators, self._state_bytes = device, operators, state_bytes
        self._memory = HeldMemory(device, limits.capacity)
        # Where calls find their inputs, as a number; steps of the same share what advances them.
        self._layouts: dict[tuple[object, ...], int] = {}
        self._steps: dict[tuple[AdvanceShape, int], AdvanceStep] = {}
        self._states: KeptStates | None = None
        self._rows: HeldRows | None = None
        self._calls: KeptCalls | None = None
        # Tokens of the rows of the step that waits, 0 of those that it does not hold, and what advances it.
        self._counts: list[int] | None = None
        self._waiting: AdvanceStep | None = None

    @property
    def advance_steps(self) -> Sequence[AdvanceStep]:
        """Those that have been prepared on a GPU."""
        return tuple(self._steps.values())

    @property
    def kept_pools(self) -> frozenset[str]:
        """Pools that need ``kept_slots`` more."""
        return frozenset(pool for pool, operator in self._operators.items() if operator in self.kept)

    @property
    def kept_slots(self) -> int:
        """Slots for the states after each token of each row."""
        return self.limits.rows * self.limits.tokens

    @property
    def kept_bytes(self) -> int:
        """Of these slots."""
        return self.kept_slots * sum(self._state_bytes[pool] for pool in self.kept_pools)

    @property
    def nbytes(self) -> int:
        """All that the tokens of a step can leave behind."""
        return self.limits.capacity * self._memory.token_bytes + self.kept_bytes

    @property
    def token_bytes(self) -> int:
        """What a token of a held row takes, once a step has run."""
        states = sum(self._state_bytes[pool] for pool in self.kept_pools)
        return self._memory.token_bytes + states

    @property
    def modes(self) -> dict[str, str]:
        """Of every recurrent operator."""
        return {name: SNAPSHOT if name in self.kept else REPLAY for name in sorted(set(self._operators.values()))}

    def costs(self) -> dict[str, OperatorCost]:
        """Of the operators that the last step called."""
        found: dict[str, OperatorCost] = {}
        assert self._calls is not None
        for pool, operator in self._operators.items():
            tokens = max(call.token_bytes for call in self._calls.calls if call.operator.name == operator)
            found[operator] = OperatorCost(self._state_bytes[pool], tokens)
        return found

    def bind(self, pools: TorchPools) -> None:
        """Advance the states of ``pools`` from now on."""
        self.forget()
        self._steps.clear()
        first = pools.sizes.num_slots
        tensors = [pools.tensors[name] for name in sorted(self.kept_pools)]
        self._states = KeptStates(tensors, first, first + self.kept_slots)

    def forget(self) -> None:
        """A new step begins; states that were not advanced stay as they are."""
        self._rows = self._calls = self._counts = self._waiting = None

    def inputs(self, inputs: PackedInputs) -> HeldInputs:
        """A step whose held rows wait from now on; EngineError when they are more than there is memory for."""
        assert self._states is not None and inputs.held is not None
        count = int(inputs.held.sum())
        if count > self.limits.rows:
            raise EngineError(
                f"expected at most {self.limits.rows} held rows in a step, found {count}: prepare for more of them"
            )
        found, rows = held_inputs(inputs, self.limits.tokens, self._states.first)
        counts = np.zeros(len(inputs.held), np.int64)
        counts[rows.rows] = rows.counts
        self._counts, self._rows = counts.tolist(), rows
        return found

    def calls(self, size: StepSize, tensors: Mapping[str, torch.Tensor]) -> KeptCalls:
        """What gets the calls of a step of that size, whose inputs are ``tensors``.

        EngineError when there is no memory for so many tokens.
        """
        if size.held > self.limits.capacity:
            raise EngineError(
                f"expected at most {self.limits.capacity} tokens in a step of held rows, found {size.held}: prepare "
                "for more rows"
            )
        return KeptCalls(self._memory, size.held, tensors[HELD_TOKENS] if size.chooses else None)

    def ran(self, calls: KeptCalls) -> None:
        """The step of ``inputs`` is on its way, and these are its calls."""
        self._calls = calls
        assert self._rows is not None
        shape = AdvanceShape(padded_rows(len(self._rows.rows), self.limits.rows), calls.tokens, self.limits.tokens)
        self._waiting = self._step(shape, calls)
        self._waiting.prepare(self._rows)

    def advance(self, accepted: np.ndarray) -> None:
        """As ``PagedEngine.advance``."""
        rows, counts, waiting = self._rows, self._counts, self._waiting
        self.forget()
        taken = accepted.tolist()
        check_accepted(taken, [0] * len(taken) if counts is None else counts)
        if rows is not None and waiting is not None and any(taken):
            waiting.launch([taken[row] for row in rows.rows.tolist()])

    def _step(self, shape: AdvanceShape, calls: KeptCalls) -> AdvanceStep:
        assert self._states is not None
        if calls.number is None:
            calls.number = self._layouts.setdefault(calls.layout, len(self._layouts))
        key = shape, calls.number
        step = self._steps.get(key)
        if step is None:
            with self._device.active():
                step = AdvanceStep(self._device, self._memory, calls.calls, self._states, shape)
            if self._device.is_gpu:
                self._steps[key] = step
        return step
