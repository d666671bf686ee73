"""One row of the kernel benchmarks: a call at given shapes, its floor, its peers and its targets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from benchmarks.kernels.peers import Peer, contest, refused
from benchmarks.kernels.prepared import Prepared
from benchmarks.kernels.timing import FEWER_REPLAYS, input_sets, recorded, replay_times

# Copy bandwidth of an NVIDIA H200, bytes read plus bytes written.
COPY_GBPS = 4272.0
_OURS = ""  # the name of no peer


@dataclass(frozen=True)
class KernelCase:
    """One row.

    bytes: fewest bytes that the call moves (each input read once, each output written once).
    peers: they are timed in the same run.
    at_least: goal for the fastest peer's time over ours, or what it is for the peers' times; None where none is set.
    bandwidth_share: goal for the floor over our time; None where no target is set.
    tolerance: largest relative norm of the error.
    prepare: makes one set with fresh random inputs and poisoned outputs.
    """

    name: str
    bytes: int
    tolerance: float
    prepare: Callable[[], Prepared]
    at_least: float | Callable[[Mapping[str, float]], float] | None = None
    bandwidth_share: float | None = None
    peers: Callable[[], Mapping[str, Peer]] = dict

    def goal(self, peers: Mapping[str, float]) -> float | None:
        """``at_least`` beside peers that take so many microseconds, by name."""
        return self.at_least(peers) if callable(self.at_least) else self.at_least


def checked(case: KernelCase) -> dict[str, Any]:
    """The row without a time. Its peers run too, so that all kernels are compiled when they are measured."""
    row = _compared(case, case.prepare())
    left_out = refused(case.peers())
    torch.cuda.empty_cache()  # other processes may check other cases on the same GPU
    return row | ({"peers_left_out": left_out} if left_out else {})


def measured(case: KernelCase) -> dict[str, Any]:
    """The row as a JSON object: without a correct result it holds no time."""
    first = case.prepare()
    row = _compared(case, first)
    if not row["correct"]:
        return row
    sets = [first, *(case.prepare() for _ in range(input_sets(case.bytes) - 1))]
    rivals = contest(case.peers(), len(sets))
    times = replay_times({_OURS: recorded([prepared.run for prepared in sets]), **rivals.recordings})
    time = times.pop(_OURS)
    # The first set's states have gone on by as many steps as were timed.
    row |= _judged(case, sets[0].error())
    if not row["correct"]:
        return row
    floor = case.bytes / COPY_GBPS / 1e3
    row |= {"us": time, "floor_us": floor, "copy_bandwidth_share": floor / time.median, "input_sets": len(sets)}
    peers = {name: each.median for name, each in times.items()}
    goals = {"copy_bandwidth_share": case.bandwidth_share}
    if case.bandwidth_share is not None:
        row["same_size_copy_share"] = _copy_time(case.bytes) / time.median
    if peers:
        best = min(peers, key=lambda name: peers[name])
        row |= {"peers_us": peers, "best_peer": best, "speed_up": peers[best] / time.median}
        goals = {"speed_up": case.goal(peers), **goals}
    row |= {"peers_slower_us": dict(rivals.slower)} if rivals.slower else {}
    row |= {"peers_left_out": dict(rivals.left_out)} if rivals.left_out else {}
    targets = {name: {"at_least": goal, "met": row[name] >= goal} for name, goal in goals.items() if goal is not None}
    return {**row, "targets": targets}


def _copy_time(nbytes: int) -> float:
    """Microseconds of torch's multiplication in place that reads and writes ``nbytes`` together, outside of the L2.

    Few bytes cannot move at COPY_GBPS: a launch and the latency of memory take most of the time.
    """
    tensors = [torch.ones(max(1, nbytes // 8), device="cuda") for _ in range(input_sets(nbytes))]
    recording = recorded([partial(tensor.mul_, 1.0) for tensor in tensors])
    return replay_times({"": recording}, FEWER_REPLAYS)[""].median


def _compared(case: KernelCase, prepared: Prepared) -> dict[str, Any]:
    prepared.run()
    return {"case": case.name, "tolerance": case.tolerance} | _judged(case, prepared.error())


def _judged(case: KernelCase, error: float) -> dict[str, Any]:
    return {"error": error, "correct": error <= case.tolerance}
