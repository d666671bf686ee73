"""Time of kernel calls on the GPU: replays of CUDA graphs of calls over input sets that do not fit in the L2."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median

import torch

from benchmarks.measure import Spread, take_turns

Calls = Sequence[Callable[[], object]]

CALLS_OF_A_GRAPH = 320
# Replays take most of the time of these benchmarks: graphs are short, and where FEWER_REPLAYS of each differ by
# no more than a share STEADY_RANGE of their median, more would hardly move it.
TARGET_MS = 20.0
REPLAYS = 31
FEWER_REPLAYS, STEADY_RANGE = 11, 0.02
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


@dataclass(frozen=True)
class Recording:
    """A graph of ``length`` calls: ``calls`` in turn, whose memory it works on."""

    graph: torch.cuda.CUDAGraph
    length: int
    calls: Calls


def graph_times(contestants: Mapping[str, Calls]) -> dict[str, Spread]:
    """``replay_times`` of each contestant's calls, by name."""
    return replay_times({name: recorded(calls) for name, calls in contestants.items()})


def replay_times(recordings: Mapping[str, Recording], repeats: int = REPLAYS) -> dict[str, Spread]:
    """Microseconds of one call, by name: median and range over replays of a graph in which a contestant's calls take
    turns. So do the graphs: clocks and temperatures are the same for all.

    Nothing is allocated between replays. All of them end early where each one's times are steady.
    """
    replays = {name: partial(_milliseconds, each.graph.replay) for name, each in recordings.items()}
    found = take_turns(replays, min(repeats, FEWER_REPLAYS))
    if repeats > FEWER_REPLAYS and not all(map(_are_steady, found.values())):
        for name, values in take_turns(replays, repeats - FEWER_REPLAYS, warmup=0).items():
            found[name] += values
    return {name: Spread.of(found[name], 1000.0 / each.length) for name, each in recordings.items()}


def _are_steady(times: Sequence[float]) -> bool:
    return max(times) - min(times) <= STEADY_RANGE * median(times)


def recorded(calls: Calls) -> Recording:
    """A graph of ``calls`` in turn, which each enqueue their work on torch's current stream.

    What a call returns stays until its next turn: else torch gives the outputs of all calls the same memory, which then
    never leaves the L2.
    """
    for call in calls[:3]:
        call()
    torch.cuda.synchronize()
    rough_ms = _milliseconds(lambda: [call() for call in calls]) / len(calls)
    count = max(len(calls), min(CALLS_OF_A_GRAPH, int(TARGET_MS / max(rough_ms, 1e-3))))
    count = math.ceil(count / len(calls)) * len(calls)
    graph = torch.cuda.CUDAGraph()
    outputs: list[object] = [None] * len(calls)
    with torch.cuda.graph(graph):
        for index in range(count):
            outputs[index % len(calls)] = calls[index % len(calls)]()
    return Recording(graph, count, calls)


def _milliseconds(work: Callable[[], object]) -> float:
    before, after = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    before.record()
    work()
    after.record()
    after.synchronize()
    return float(before.elapsed_time(after))
