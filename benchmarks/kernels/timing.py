"""Time of a kernel call on the GPU: replays of a CUDA graph of calls over input sets that do not fit in the L2."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from benchmarks.measure import Spread

CALLS_OF_A_GRAPH = 320
REPLAYS = 31
TARGET_MS = 60.0
FOOTPRINT_BYTES = 840_000_000
"""Bytes that all input sets of a graph move. A state that is updated in place moves twice, so that at least half of
them are different addresses: 420 MB, several times the L2 of every GPU that the kernels target (60 MB on an H200)."""
LEAST_SETS = 2


def input_sets(bytes_of_a_call: int) -> int:
    """How many sets of inputs take turns, so that a call finds none of its inputs in the L2.

    Together they move FOOTPRINT_BYTES; their memory is at most that and one set more, or LEAST_SETS sets where a set is
    larger. ValueError for a call that moves nothing.
    """
    if bytes_of_a_call < 1:
        raise ValueError(f"expected a call that moves at least 1 byte, found {bytes_of_a_call}")
    return max(LEAST_SETS, math.ceil(FOOTPRINT_BYTES / bytes_of_a_call))


def graph_time(calls: Sequence[Callable[[], object]]) -> Spread:
    """Microseconds of one call: median and range over replays of a graph in which ``calls`` take turns.

    Each call enqueues its work on torch's current stream; nothing is allocated between replays.
    """
    for call in calls[:3]:
        call()
    torch.cuda.synchronize()
    rough_ms = _milliseconds(lambda: [call() for call in calls]) / len(calls)
    count = max(len(calls), min(CALLS_OF_A_GRAPH, int(TARGET_MS / max(rough_ms, 1e-3))))
    count = math.ceil(count / len(calls)) * len(calls)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for index in range(count):
            calls[index % len(calls)]()
    graph.replay()
    torch.cuda.synchronize()
    return Spread.of((_milliseconds(graph.replay) / count for _ in range(REPLAYS)), 1000.0)


def _milliseconds(work: Callable[[], object]) -> float:
    before, after = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    before.record()
    work()
    after.record()
    after.synchronize()
    return float(before.elapsed_time(after))
