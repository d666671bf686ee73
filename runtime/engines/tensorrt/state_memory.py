"""Device memory for the states of a number of rows, and a pool that reuses it.

One allocation holds every state of ``batch`` rows, each aligned. A state whose output shares its input's memory has
one buffer; any other has two, and after each step the input and the output swap roles: ``turn`` (0 or 1) says which
of the two holds the states now.

    | aliased states | the others, turn 0 | the others, turn 1 |
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from hybridge.runtime.engines.tensorrt.binding_plan import BindingPlan
from hybridge.runtime.engines.tensorrt.errors import OutOfDeviceMemory
from hybridge.runtime.engines.tensorrt.memory import Allocation, DeviceMemory, aligned


@dataclass(frozen=True)
class StateLayout:
    """Where the states of a number of rows are. offsets: by name, in turn 0 and in turn 1.

    first_turn: bytes of everything that turn 0 uses. nbytes: of all.
    """

    offsets: Mapping[str, tuple[int, int]]
    first_turn: int
    nbytes: int

    @classmethod
    def of(cls, plan: BindingPlan, batch: int) -> StateLayout:
        """The layout for ``batch`` rows."""
        others = [state for state in plan.states if not state.aliased]
        offsets: dict[str, tuple[int, int]] = {}
        end = 0
        for state in (*(state for state in plan.states if state.aliased), *others):
            offsets[state.spec.name] = (end, end)
            end += aligned(plan.nbytes(state.spec, batch))
        first_turn = end
        for state in others:
            offsets[state.spec.name] = (offsets[state.spec.name][0], end)
            end += aligned(plan.nbytes(state.spec, batch))
        return cls(offsets, first_turn, end)


class StateMemory:
    """The states of ``batch`` rows in device memory. ``turn`` changes with ``advance``."""

    def __init__(self, memory: DeviceMemory, plan: BindingPlan, batch: int) -> None:
        """Allocate for ``batch`` rows; OutOfDeviceMemory when there is too little. The content is undefined."""
        self.batch, self.turn = batch, 0
        self._memory, self._plan = memory, plan
        self._layout = StateLayout.of(plan, batch)
        self._allocation: Allocation | None = None
        if self._layout.nbytes:
            self._allocation = memory.allocate(self._layout.nbytes, f"the states of {batch} rows")

    @property
    def base(self) -> int:
        """Address of the first byte; 0 for a model without states."""
        return 0 if self._allocation is None else self._allocation.address

    def address(self, name: str) -> int:
        """The current address of the state ``name``."""
        return self.base + self._layout.offsets[name][self.turn]

    def addresses(self) -> dict[str, int]:
        """The address of every state's input and output tensor in the step of this turn."""
        found = {}
        for state in self._plan.states:
            offsets = self._layout.offsets[state.spec.name]
            found[state.spec.name] = self.base + offsets[self.turn]
            found[state.output] = self.base + offsets[1 - self.turn]
        return found

    def advance(self) -> None:
        """Take over what a step has written."""
        if self._plan.takes_turns:
            self.turn = 1 - self.turn

    def clear(self) -> None:
        """Zero every state and begin with turn 0."""
        self.turn = 0
        if self._layout.first_turn:
            self._memory.zero(self.base, self._layout.first_turn)

    def free(self) -> None:
        """Give the memory back; calling it twice is allowed."""
        if self._allocation is not None:
            self._allocation.free()


class StatePool:
    """Memory of states that are no longer used, kept for the next set of as many rows.

    Decode graphs hold addresses, so that memory which comes back brings its graphs along. What is kept unused never
    exceeds ``max_rows`` rows; ``discard`` is called with memory before it is freed.
    """

    def __init__(
        self, memory: DeviceMemory, plan: BindingPlan, max_rows: int, discard: Callable[[StateMemory], None]
    ) -> None:
        self._memory, self._plan, self._max_rows, self._discard = memory, plan, max_rows, discard
        self._lent: set[StateMemory] = set()
        self._free: list[StateMemory] = []
        # Filled by finalizers, which run at any point of the program: nothing else happens there.
        self._returned: deque[StateMemory] = deque()
        self._lock = threading.Lock()

    def lend(self, batch: int) -> StateMemory:
        """Cleared memory for ``batch`` rows; OutOfDeviceMemory when there is too little even without what is kept."""
        with self._lock:
            self._collect()
            found = next((memory for memory in self._free if memory.batch == batch), None)
            if found is not None:
                self._free.remove(found)
            else:
                found = self._allocate(batch)
            self._lent.add(found)
        found.clear()
        return found

    def release(self, memory: StateMemory) -> None:
        """Take ``memory`` back; safe in a finalizer."""
        self._returned.append(memory)

    def close(self) -> None:
        """Free everything, lent or not; calling it twice is allowed."""
        with self._lock:
            for memory in (*self._lent, *self._free):
                self._deallocate(memory)
            self._lent.clear()
            self._free.clear()
            self._returned.clear()

    def _collect(self) -> None:
        while self._returned:
            memory = self._returned.popleft()
            if memory in self._lent:
                self._lent.remove(memory)
                self._free.append(memory)
        while sum(memory.batch for memory in self._free) > self._max_rows:
            self._deallocate(self._free.pop(0))

    def _allocate(self, batch: int) -> StateMemory:
        try:
            return StateMemory(self._memory, self._plan, batch)
        except OutOfDeviceMemory:
            if not self._free:
                raise
        while self._free:
            self._deallocate(self._free.pop())
        return StateMemory(self._memory, self._plan, batch)

    def _deallocate(self, memory: StateMemory) -> None:
        self._discard(memory)
        memory.free()
