"""The hidden states that a step of a model writes, or that a step of a prediction head reads and writes."""

from __future__ import annotations

from collections.abc import Mapping

from hybridge.artifact.names import HIDDEN_ROWS, HIDDEN_STATES, OWN_HIDDEN_STATES
from hybridge.runtime.engines.tensorrt.memory import Allocation, DeviceMemory
from hybridge.runtime.engines.tensorrt.paged.hidden_rows import DeviceRows


class StepHidden:
    """What contexts are bound to for hidden states: nothing."""

    @property
    def addresses(self) -> Mapping[str, int]:
        """Addresses of inputs and outputs."""
        return {}

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Shapes of inputs."""
        return {}

    def after(self, logits: int) -> None:
        """Enqueue what follows a step with so many logits."""


class ShownHidden(StepHidden):
    """A step of a model leaves the states of its tokens in ``rows``."""

    def __init__(self, rows: DeviceRows) -> None:
        self.rows = rows

    @property
    def addresses(self) -> Mapping[str, int]:
        return {HIDDEN_STATES: self.rows.address_of(self.rows.first)}


class ReadHidden(StepHidden):
    """A step of a head reads ``rows``. Its own states go to ``own`` first: a step must not overwrite what it reads."""

    def __init__(self, memory: DeviceMemory, rows: DeviceRows, own: Allocation) -> None:
        self.rows = rows
        self._memory, self._own = memory, own

    @property
    def addresses(self) -> Mapping[str, int]:
        return {HIDDEN_ROWS: self.rows.address, OWN_HIDDEN_STATES: self._own.address}

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return {HIDDEN_ROWS: self.rows.shape}

    def after(self, logits: int) -> None:
        target = self.rows.address_of(self.rows.own_first)
        self._memory.copy(target, self._own.address, logits * self.rows.row_bytes)
