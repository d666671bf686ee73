"""``feed_tokens``: a step gets the tokens that the step before it has chosen, without the host."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hybridge.artifact.errors import UnsupportedError
from hybridge.trt_plugins.kernels.call import CallPlan, DeviceTraits, KernelLaunch, Memory, PointerSource
from hybridge.trt_plugins.kernels.source import KernelSource
from hybridge.trt_plugins.kernels.structs import struct_type

FILE = "sampling/feed_tokens.cu"
# Tokens that can end a row.
MOST_STOPS = 16
# Inputs and outputs of a launch in this order; the outputs hold the step's values for rows that go on.
INPUTS = ("source", "stops", "sources")
OUTPUTS = ("input_ids", "seq_lens", "slot_mapping", "state_indices")
# The last input and output of a launch that copies the step's inputs first.
COPIED, COPY = "copied", "copy"
_THREADS, _ACCESS = 256, 16


@dataclass(frozen=True)
class FeedingProblem:
    """Feed ``rows`` rows of one token. Inputs: source uint64 [2], the address of the first token (int32, -1 for none)
    and the bytes from one token to the next; stops int32 [rows, MOST_STOPS], filled up with -1; sources int32 [rows],
    which token is each row's, -1: the row stays as it is. Outputs, changed where they are: input_ids int64, and
    seq_lens, slot_mapping and state_indices int32, each of at least ``rows``. copied_bytes: of the memory of all these,
    which is first copied from host memory, a multiple of 16; 0: it is there.
    """

    rows: int
    copied_bytes: int = 0

    def __post_init__(self) -> None:
        if self.copied_bytes % _ACCESS:
            raise UnsupportedError(
                f"feed_tokens: expected inputs of a multiple of {_ACCESS} bytes, found {self.copied_bytes}; pad them"
            )


def plan(problem: FeedingProblem, device: DeviceTraits) -> CallPlan:
    """The launch that runs ``problem``."""
    params = struct_type(FILE, "FedRows")()
    params.rows, params.bytes = problem.rows, problem.copied_bytes
    pointers = {name: PointerSource(Memory.INPUT, index) for index, name in enumerate(INPUTS)}
    pointers |= {name: PointerSource(Memory.OUTPUT, index) for index, name in enumerate(OUTPUTS)}
    if problem.copied_bytes:
        pointers[COPIED] = PointerSource(Memory.INPUT, len(INPUTS))
        pointers[COPY] = PointerSource(Memory.OUTPUT, len(OUTPUTS))
    (source,) = sources()
    launch = KernelLaunch(source, (1, 1, 1), (_THREADS, 1, 1), params, pointers)
    return CallPlan((launch,), name="feed_tokens")


def sources() -> Iterator[KernelSource]:
    """The kernel."""
    yield KernelSource.of(FILE, "feed_tokens", {"THREADS": _THREADS, "STOPS": MOST_STOPS})
