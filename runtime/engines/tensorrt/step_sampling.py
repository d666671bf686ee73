"""Sampling kernels after a step of the engine, on the same stream and in the same captured graph."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate

import numpy as np

from hybridge.artifact.errors import UnsupportedError
from hybridge.runtime.engines.device_sampling import (
    DeviceSampling,
    SamplingMemory,
    Table,
    result_bytes,
    table_bytes,
)
from hybridge.runtime.engines.tensorrt.memory import DeviceMemory, aligned
from hybridge.runtime.engines.tensorrt.staging import Staging
from hybridge.runtime.sampling import TokenSampling
from hybridge.trt_plugins.kernels.fused import sampling
from hybridge.trt_plugins.kernels.fused.sampling import SamplingProblem, most_workspace_bytes

# By the address of a step's logits.
StepSampler = DeviceSampling[int]


class StepSampling:
    """Samplers by rows of logits. They share memory, so that one step with one of them runs at a time."""

    def __init__(self, memory: DeviceMemory, vocab: int, sizes: Sequence[int], workspace: int) -> None:
        """``sizes``: numbers of rows, ascending. ``workspace``: address of ``workspace_bytes`` bytes for the kernels.

        OutOfDeviceMemory when there is too little memory.
        """
        self._memory, self._vocab, self._sizes, self._workspace = memory, vocab, tuple(sizes), workspace
        self._staging = Staging(memory, max(1, staged_bytes(sizes[-1], vocab)), "sampling")
        self._results = memory.allocate_pinned(max(1, mapped_bytes(sizes[-1], vocab)), "sampled tokens")
        self._made: dict[tuple[int, bool], StepSampler | None] = {}
        self._last: StepSampler | None = None

    def of(self, rows: int, samplings: Mapping[int, TokenSampling]) -> StepSampler | None:
        """The sampler for a step with ``rows`` rows of logits, filled with each row's sampling settings.

        None where the host must sample: the kernels' largest vocabulary is smaller, or there are too many rows. The
        step before must be done.
        """
        place = bisect_left(self._sizes, rows)
        if place == len(self._sizes):
            return None
        lists = any(draw.params.logprobs is not None for draw in samplings.values())
        sampler = self._sampler(self._sizes[place], lists)
        if sampler is not None:
            if sampler is not self._last:
                sampler.forget()
            self._last = sampler
            sampler.fill(samplings)
        return sampler

    def free(self) -> None:
        """Release the memory; calling it twice is allowed."""
        self._staging.free()
        self._results.free()

    def _sampler(self, rows: int, lists: bool) -> StepSampler | None:
        if (rows, lists) not in self._made:
            results, most = self._results.array, self._sizes[-1]
            try:
                memory = _SharedMemory(self._memory, self._staging, results, self._workspace, most, self._vocab)
                self._made[rows, lists] = DeviceSampling(memory, rows, self._vocab, lists)
            except UnsupportedError:
                self._made[rows, lists] = None
        return self._made[rows, lists]


def workspace_bytes(rows: int, vocab: int) -> int:
    """Memory for the kernels' intermediate values, which only they use."""
    try:
        return most_workspace_bytes(SamplingProblem(rows, vocab, lists=True))
    except UnsupportedError:
        return 0


def staged_bytes(rows: int, vocab: int) -> int:
    """Device memory of the tables, and as much pinned host memory."""
    return _sum_of(table_bytes, rows, vocab)


def mapped_bytes(rows: int, vocab: int) -> int:
    """Pinned host memory of the results."""
    return _sum_of(result_bytes, rows, vocab)


def _sum_of(sizes: Callable[[int, int, bool], tuple[int, ...]], rows: int, vocab: int) -> int:
    try:
        return sum(map(aligned, sizes(rows, vocab, True)))
    except UnsupportedError:
        return 0


def _starts(sizes: tuple[int, ...]) -> list[int]:
    return list(accumulate(map(aligned, sizes[:-1]), initial=0))


class _SharedMemory(SamplingMemory[int]):
    """The memory of all samplers; each kind of table has the offset that it has in the largest sampler."""

    def __init__(
        self, memory: DeviceMemory, staging: Staging, results: np.ndarray, workspace: int, most_rows: int, vocab: int
    ) -> None:
        self._memory, self._staging, self._results, self._workspace = memory, staging, results, workspace
        self._tables = iter(_starts(table_bytes(most_rows, vocab, True)))
        self._parts = iter(_starts(result_bytes(most_rows, vocab, True)))

    def table(self, nbytes: int) -> _StagedTable:
        return _StagedTable(self._memory, self._staging, next(self._tables), nbytes)

    def mapped(self, nbytes: int) -> np.ndarray:
        begin = next(self._parts)
        found = self._results[begin : begin + nbytes]
        found[...] = 0
        return found

    def prepared(
        self, problem: SamplingProblem, tables: Sequence[Table], results: Sequence[np.ndarray]
    ) -> Callable[[int], None]:
        kernels = self._memory.bind(lambda traits: sampling.plan(problem, traits))
        there = [table.address for table in tables if isinstance(table, _StagedTable)]
        found = [array.ctypes.data for array in results]

        def run(logits: int) -> None:
            kernels.launch(self._memory.stream, (logits, *there), found, self._workspace)

        return run


class _StagedTable(Table):
    def __init__(self, memory: DeviceMemory, staging: Staging, begin: int, nbytes: int) -> None:
        self._memory, self.address, self._host = memory, staging.address + begin, staging.host + begin
        self.here = staging.array[begin : begin + nbytes]

    def upload(self, begin: int = 0, end: int | None = None) -> None:
        nbytes = (len(self.here) if end is None else end) - begin
        self._memory.copy(self.address + begin, self._host + begin, nbytes)
