"""Advancing the states that a step held, by the tokens that were accepted: on a GPU one graph launch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from hybridge.runtime.engines.torch.branches import Branches
from hybridge.runtime.engines.torch.device import MOST_PARTS, TorchDevice
from hybridge.runtime.engines.torch.kept_calls import HeldMemory, KeptCall, Memory, Output, Place
from hybridge.runtime.engines.torch.recording import RepeatedWork
from hybridge.runtime.engines.torch.step_rows import StepRows


@dataclass(frozen=True)
class HeldRows:
    """The held rows of one step, in their order.

    rows: their indices in the step. starts: first of the kept tokens of each. counts: tokens. slots: of their states.
    """

    rows: np.ndarray
    starts: np.ndarray
    counts: np.ndarray
    slots: np.ndarray


@dataclass(frozen=True)
class AdvanceShape:
    """rows: of the step that were held. tokens: of which inputs are kept. most: tokens of a row."""

    rows: int
    tokens: int
    most: int


class KeptStates:
    """Pools of which a step keeps the state after each token: of its i-th held row, after token j, in slot
    ``first`` + i * most + j. ``nowhere`` is a slot of nobody."""

    def __init__(self, pools: Sequence[torch.Tensor], first: int, nowhere: int) -> None:
        self.pools, self.first, self.nowhere = tuple(pools), first, nowhere


class AdvanceStep:
    """Calls the operators of a step again, over two rows for each that it held: its accepted tokens, which replace the
    state that they begin with, and its others, which touch nothing. A row before them has what comes before the first.

    States that were kept after each token are copied.
    """

    def __init__(
        self,
        device: TorchDevice,
        memory: HeldMemory,
        calls: Sequence[KeptCall],
        states: KeptStates,
        shape: AdvanceShape,
    ) -> None:
        self._device, self._memory, self._calls, self._states, self._shape = device, memory, tuple(calls), states, shape
        parts = 1 + 2 * shape.rows
        sizes = (parts + 1, parts * shape.most, parts, shape.rows, shape.rows)
        ends = np.cumsum(sizes).tolist()
        self._host = device.pinned(ends[-1], dtype=torch.int32)
        self._there = torch.empty_like(self._host, device=device.torch) if device.is_gpu else self._host
        places = [slice(end - size, end) for size, end in zip(sizes, ends, strict=True)]
        self._bounds, self._slots, self._accepted, self._sources, self._targets = (
            self._there[place] for place in places
        )
        self._slots = self._slots.view(parts, shape.most)
        here = self._host.numpy()
        self._arrays = [here[place] for place in places]
        self._starts: list[int] = []
        self._own: list[int] = []
        # Layers advance at the same time: one by one their kernels are short of work for a GPU.
        self._parts = [part % MOST_PARTS for part in parts_of(self._calls)]
        self._branches = Branches(device, len(set(self._parts)))
        self.repeated = RepeatedWork(device, self._work, device.advance_pool if device.is_gpu else None)

    def prepare(self, held: HeldRows) -> None:
        """Write all that is known of ``held`` before its step is done; the advance before has to be.

        That is while the device runs the step, so that little is left to do behind it.
        """
        bounds, slots, counts, sources, targets = self._arrays
        rows = len(held.rows)
        bounds[1 : 1 + 2 * rows : 2] = held.starts
        bounds[1 + 2 * rows :] = self._shape.tokens
        slots.fill(-1)
        counts.fill(1)
        if self._states.pools:
            sources.fill(self._states.nowhere)
            targets.fill(self._states.nowhere)
        self._starts, self._own = held.starts.tolist(), held.slots.tolist()

    def launch(self, accepted: Sequence[int]) -> None:
        """Enqueue it for rows of which the first ``accepted`` [rows] tokens advance the state; 0: none.

        The rows are few: one by one they take less time than as arrays.
        """
        bounds, slots, counts, sources, targets = self._arrays
        most, first = self._shape.most, self._states.first
        for index, (start, count, slot) in enumerate(zip(self._starts, accepted, self._own, strict=True)):
            row = 1 + 2 * index
            bounds[row + 1] = start + count
            if count:
                counts[row], slots[row * most + count - 1] = count, slot
                if self._states.pools:
                    sources[index], targets[index] = first + index * most + count - 1, slot
        if self.repeated.is_replayed:
            self.repeated.run()
            return
        with self._device.active():
            self.repeated.run()

    def _work(self) -> None:
        if self._there is not self._host:
            self._there.copy_(self._host, non_blocking=True)
        rows = StepRows(self._bounds, None, None, 0, self._shape.most)
        outputs: list[Sequence[torch.Tensor]] = []
        with self._branches.forked():
            for call, part in zip(self._calls, self._parts, strict=True):
                given = list(call.given)
                for index, place in call.places.items():
                    given[index] = place.view(self._rows(place, outputs))
                with self._branches.part(part):
                    outputs.append(call.operator.advanced(given, rows, self._slots, self._accepted))
        for pool in self._states.pools:
            pool.index_copy_(0, self._targets.long(), pool.index_select(0, self._sources))

    def _rows(self, place: Place, outputs: Sequence[Sequence[torch.Tensor]]) -> torch.Tensor:
        source = place.source
        if isinstance(source, Output):
            return outputs[source.call][source.number]
        assert isinstance(source, Memory)
        return self._memory.rows(source, self._shape.tokens)


def parts_of(calls: Sequence[KeptCall]) -> list[int]:
    """Of each call the part of the work that it belongs to: calls depend on calls of their own part alone.

    Calls that need what calls of several parts give belong to all of them, which are one then.
    """
    parts: list[int] = []
    for call in calls:
        needed = {parts[place.source.call] for place in call.places.values() if isinstance(place.source, Output)}
        own = min(needed, default=len(parts))
        parts = [own if part in needed else part for part in parts]
        parts.append(own)
    numbers = {part: number for number, part in enumerate(dict.fromkeys(parts))}
    return [numbers[part] for part in parts]
