"""Advancing the states that a step deferred, by the tokens that were accepted: on a GPU one graph launch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from hybridge.runtime.engines.rollback.draft_inputs import StoredRows
from hybridge.runtime.engines.rollback.rollback import SnapshotSlots
from hybridge.runtime.engines.torch.branches import Branches
from hybridge.runtime.engines.torch.device import MOST_PARTS, TorchDevice
from hybridge.runtime.engines.torch.recording import RepeatedWork
from hybridge.runtime.engines.torch.step_rows import StepRows
from hybridge.runtime.engines.torch.stored_calls import InputLayout, Memory, Output, StoredCall, TokenMemory


@dataclass(frozen=True)
class AdvanceShape:
    """rows: of the step that were deferred. tokens: of which inputs are stored. most: tokens of a row."""

    rows: int
    tokens: int
    most: int


class SnapshotPools(NamedTuple):
    """Pools of operators with a snapshot after each token, in ``slots``. ``nowhere``: a slot that nothing reads."""

    tensors: Sequence[torch.Tensor]
    slots: SnapshotSlots
    nowhere: int


class AdvanceStep:
    """Calls the operators of a step again, over two rows for each that it deferred: its accepted tokens, which replace
    the state that they begin with, and its others, which touch nothing. A row before them has what comes before the
    first. Snapshots are copied. A ``RollbackMemory``.
    """

    def __init__(
        self,
        device: TorchDevice,
        memory: TokenMemory,
        calls: Sequence[StoredCall],
        pools: SnapshotPools,
        shape: AdvanceShape,
    ) -> None:
        self._device, self._memory, self._calls, self._pools, self._shape = device, memory, tuple(calls), pools, shape
        parts = 1 + 2 * shape.rows
        sizes = (parts + 1, parts * shape.most, parts, shape.rows, shape.rows)
        ends = np.cumsum(sizes).tolist()
        self._host = device.pinned(ends[-1], dtype=torch.int32)
        self._there = torch.empty_like(self._host, device=device.torch) if device.is_gpu else self._host
        slices = [slice(end - size, end) for size, end in zip(sizes, ends, strict=True)]
        self._bounds, self._slots, self._accepted, self._sources, self._targets = (self._there[part] for part in slices)
        self._slots = self._slots.view(parts, shape.most)
        here = self._host.numpy()
        self._arrays = [here[part] for part in slices]
        self._starts: list[int] = []
        self._own: list[int] = []
        # Layers advance at the same time: one by one their kernels are short of work for a GPU.
        self._parts = [part % MOST_PARTS for part in parts_of(self._calls)]
        self._branches = Branches(device, len(set(self._parts)))
        self.repeated = RepeatedWork(device, self._work, device.advance_pool if device.is_gpu else None)

    def prepare(self, stored: StoredRows) -> None:
        """Write what is known of ``stored`` before its step is done; the previous advance must be done.

        That is while the device runs the step, so that little is left to do behind it.
        """
        bounds, slots, counts, sources, targets = self._arrays
        rows = len(stored.starts)
        bounds[1 : 1 + 2 * rows : 2] = stored.starts
        bounds[1 + 2 * rows :] = self._shape.tokens
        slots.fill(-1)
        counts.fill(1)
        if self._pools.tensors:
            sources.fill(self._pools.nowhere)
            targets.fill(self._pools.nowhere)
        self._starts, self._own = stored.starts.tolist(), stored.deferred.slots.tolist()

    def advance(self, accepted: Sequence[int], sources: Sequence[int], targets: Sequence[int]) -> None:
        """Enqueue it; as ``RollbackMemory.advance``.

        The rows are few: one by one they take less time than as arrays.
        """
        bounds, slots, counts, from_slots, to_slots = self._arrays
        most = self._shape.most
        for index, (start, count, slot) in enumerate(zip(self._starts, accepted, self._own, strict=True)):
            row = 1 + 2 * index
            bounds[row + 1] = start + count
            if count:
                counts[row], slots[row * most + count - 1] = count, slot
        if self._pools.tensors:
            from_slots[: len(sources)], to_slots[: len(targets)] = sources, targets
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
                for index, layout in call.layouts.items():
                    given[index] = layout.view(self._rows(layout, outputs))
                with self._branches.part(part):
                    outputs.append(call.operator.advanced(given, rows, self._slots, self._accepted))
        for pool in self._pools.tensors:
            pool.index_copy_(0, self._targets.long(), pool.index_select(0, self._sources))

    def _rows(self, layout: InputLayout, outputs: Sequence[Sequence[torch.Tensor]]) -> torch.Tensor:
        source = layout.source
        if isinstance(source, Output):
            return outputs[source.call][source.number]
        assert isinstance(source, Memory)
        return self._memory.rows(source, self._shape.tokens)


def parts_of(calls: Sequence[StoredCall]) -> list[int]:
    """The independent part of the work of each call: calls depend only on calls of the same part.

    Calls that need what calls of several parts give belong to all of them, which are one then.
    """
    parts: list[int] = []
    for call in calls:
        needed = {parts[each.source.call] for each in call.layouts.values() if isinstance(each.source, Output)}
        own = min(needed, default=len(parts))
        parts = [own if part in needed else part for part in parts]
        parts.append(own)
    numbers = {part: number for number, part in enumerate(dict.fromkeys(parts))}
    return [numbers[part] for part in parts]
