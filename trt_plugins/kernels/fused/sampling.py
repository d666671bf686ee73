"""``sampling``: chooses a token from each row of logits, with settings read from device memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np

from hybridge.artifact.errors import UnsupportedError
from hybridge.trt_plugins.kernels.call import CallPlan, DeviceTraits, KernelLaunch, Memory, PointerSource
from hybridge.trt_plugins.kernels.source import KernelSource
from hybridge.trt_plugins.kernels.structs import struct_type

_FILES = ("score_slices", "weigh_slices", "gather_window", "choose_token")
SCORE, WEIGH, GATHER, CHOOSE = (f"sampling/{name}.cu" for name in _FILES)
# The same as in plugin_src/sampling/weights.cuh.
IDLE, BEST, SAMPLED, LISTED = range(4)
LIST_TOKENS, MOST_LISTED, _BINS, _PARTS = 8192, 64, 4096, 8
# Inputs and outputs of a launch in this order.
INPUTS = ("logits", "settings", "edits", "masks")
OUTPUTS = ("sampled", "listed_tokens", "listed_logits")
_THREADS, _CHOOSE_THREADS = 256, 1024
_MOST_SLICES, _MOST_SLICE, _LEAST_SLICE = 32, 16384, 2048
_ALIGNMENT = 256
# The grid has a row for each problem.
_MOST_ROWS = 32767
# Resident blocks per multiprocessor.
_BLOCKS = 5


@dataclass(frozen=True)
class SamplingProblem:
    """Choose a token from each row of logits [rows, vocab] float32 and, with ``lists``, list the most likely tokens.

    The problems are the rows' tokens, followed by the lists. Inputs: the logits, ``settings_type`` [problems],
    ``edit_type`` [edits] and masks [rows, ceil(vocab / 32)] uint32, of which only
    the parts that settings name are read. Outputs:
    ``result_type`` [problems], and for lists tokens int32 and logits float32 [problems, MOST_LISTED], the most
    likely first. A list has no edits. Addresses are multiples of 16 bytes.
    """

    rows: int
    vocab: int
    lists: bool = False

    def __post_init__(self) -> None:
        if not (1 <= self.rows <= _MOST_ROWS and 1 <= self.vocab <= _MOST_SLICES * _MOST_SLICE):
            raise UnsupportedError(
                f"sampling: expected 1 to {_MOST_ROWS} rows of at most {_MOST_SLICES * _MOST_SLICE} tokens, found "
                f"{self.rows} of {self.vocab}; sample on the host"
            )

    @property
    def problems(self) -> int:
        """The number of problems: tokens and lists."""
        return 2 * self.rows if self.lists else self.rows


@cache
def settings_type() -> np.dtype:
    """The type of a problem's settings, as in plugin_src/sampling/params.cuh."""
    return np.dtype(struct_type(SCORE, "Settings"))


@cache
def edit_type() -> np.dtype:
    """The type of a change to one logit."""
    return np.dtype(struct_type(SCORE, "Edit"))


@cache
def result_type() -> np.dtype:
    """The type of a problem's result."""
    return np.dtype(struct_type(SCORE, "Sampled"))


def plan(problem: SamplingProblem, device: DeviceTraits) -> CallPlan:
    """The launches that run ``problem``."""
    slices, slice_tokens = _slices(problem, device.multiprocessors)
    params = struct_type(SCORE, "Sampling")()
    params.vocab, params.slices, params.slice = problem.vocab, slices, slice_tokens
    pointers = {name: PointerSource(Memory.INPUT, index) for index, name in enumerate(INPUTS)}
    pointers |= {name: PointerSource(Memory.OUTPUT, index) for index, name in enumerate(OUTPUTS)}
    pointers["arrived"] = PointerSource(Memory.COUNTERS)
    rows = problem.problems
    offsets, end = _workspace(problem, slices)
    pointers |= {name: PointerSource(Memory.WORKSPACE, offset=offset) for name, offset in offsets.items()}
    overlap = device.is_hopper_or_later
    score, weigh, gather, choose = _kernels(4 if problem.vocab % 4 == 0 else 1)
    grid, block = (slices, rows, 1), (_THREADS, 1, 1)
    launches = (
        KernelLaunch(score, grid, block, params, pointers, overlap=overlap),
        KernelLaunch(weigh, grid, block, params, pointers, overlap=overlap),
        KernelLaunch(gather, grid, block, params, pointers, overlap=overlap),
        KernelLaunch(choose, (rows, 1, 1), (_CHOOSE_THREADS, 1, 1), params, pointers, overlap=overlap),
    )
    return CallPlan(launches, end, "sampling", 4 * rows)


def most_workspace_bytes(problem: SamplingProblem) -> int:
    """The most workspace that ``plan`` needs on any device."""
    return _workspace(problem, _MOST_SLICES)[1]


def sources() -> Iterator[KernelSource]:
    """The four kernels, for rows aligned to 16 bytes and for others."""
    for vector in (1, 4):
        yield from _kernels(vector)


def _kernels(vector: int) -> tuple[KernelSource, ...]:
    """The four kernels in launch order; ``vector``: tokens per memory access."""
    sizes = {"THREADS": _THREADS, "VECTOR": vector}
    return (
        KernelSource.of(SCORE, "score_slices", {**sizes, "MOST_SLICE": _MOST_SLICE, "MOST_SLICES": _MOST_SLICES}),
        KernelSource.of(WEIGH, "weigh_slices", sizes),
        KernelSource.of(GATHER, "gather_window", sizes),
        KernelSource.of(CHOOSE, "choose_token", {"THREADS": _CHOOSE_THREADS}),
    )


def _workspace(problem: SamplingProblem, slices: int) -> tuple[dict[str, int], int]:
    """The offset of every part of the workspace, and the bytes of all."""
    rows, end = problem.problems, 0
    sizes = {
        "scores": 4 * problem.rows * problem.vocab,
        "peaks": 4 * rows * slices * _THREADS,
        "totals": 8 * rows * slices * _PARTS,
        "states": 16 * rows,
        "above_window": 8 * problem.rows * slices * _PARTS,
        "bins": 2 * _BINS * problem.rows * slices,
        "windows": 16 * problem.rows,
        "slice_best": 12 * rows * slices,
        "counts": 4 * rows,
        "gathered_scores": 4 * rows * LIST_TOKENS,
        "gathered_tokens": 4 * rows * LIST_TOKENS,
    }
    offsets = {}
    for name, nbytes in sizes.items():
        offsets[name] = end
        end += -(-nbytes // _ALIGNMENT) * _ALIGNMENT
    return offsets, end


def _slices(problem: SamplingProblem, multiprocessors: int) -> tuple[int, int]:
    """The number of slices of a row and the tokens of each: about one wave of blocks on all multiprocessors."""
    tokens = problem.problems * problem.vocab // (multiprocessors * _BLOCKS)
    tokens = max(tokens, _LEAST_SLICE, -(-problem.vocab // _MOST_SLICES))
    tokens = min(-(-tokens // 1024) * 1024, _MOST_SLICE)
    return -(-problem.vocab // tokens), tokens
