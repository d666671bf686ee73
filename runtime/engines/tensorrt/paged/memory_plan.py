"""The device memory of a paged engine, computed from engine.json."""

from __future__ import annotations

from dataclasses import dataclass

from hybridge.artifact.bindings import NUM_BLOCKS, NUM_SLOTS
from hybridge.artifact.engine_record import EngineRecord
from hybridge.artifact.errors import EngineError
from hybridge.runtime.engines.tensorrt.binding_check import AGAIN
from hybridge.runtime.engines.tensorrt.memory import aligned
from hybridge.runtime.engines.tensorrt.paged.captured_steps import CapturedSizes
from hybridge.runtime.engines.tensorrt.paged.hidden_rows import rows_bytes
from hybridge.runtime.engines.tensorrt.paged.pools import pool_bytes
from hybridge.runtime.engines.tensorrt.paged.row_feeding import feeding_bytes
from hybridge.runtime.engines.tensorrt.paged.step_arrays import layout
from hybridge.runtime.engines.tensorrt.paged.step_bindings import StepBindings, recorded_bindings
from hybridge.runtime.engines.tensorrt.step_sampling import mapped_bytes, staged_bytes, workspace_bytes
from hybridge.trt_plugins.rewrites.hidden_states import HiddenForm

# The plugin that reads only the blocks that a row has.
_ATTENTION = "paged_attention"


@dataclass(frozen=True)
class MemoryPlan:
    """Bytes of device memory, and counts.

    engines: the engine files. activations: shared by all contexts and the sampling kernels. inputs, logits, sampling:
    of one step, and as much pinned host memory. sampled: pinned host memory for
    tokens, sampled or fed. drafts: what a replay stores
    of a step, or the slots of the states after draft tokens. hidden: states for a prediction head, without those that a
    drafter keeps. block: of 16 tokens; slot: the states of a sequence; both
    in all layers and all buffers. rows: pools for all rows at full length.
    largest: the largest pools that the profiles allow. graphs: captured steps, each with a context, and one context
    for other steps; their memory is TensorRT's own and not counted.
    """

    engines: int
    activations: int
    inputs: int
    logits: int
    sampling: int
    sampled: int
    drafts: int
    hidden: int
    block: int
    slot: int
    rows: int
    largest: int
    graphs: int

    @property
    def fixed(self) -> int:
        """All but the pools."""
        return self.engines + self.activations + self.inputs + self.logits + self.sampling + self.drafts + self.hidden

    @property
    def contexts(self) -> int:
        """Execution contexts."""
        return self.graphs + 1


def memory_plan(record: EngineRecord) -> MemoryPlan:
    """The plan for the paged engine of ``record``; EngineError where that is incomplete."""
    bindings = recorded_bindings(record)
    try:
        return _plan(record, bindings)
    except (KeyError, TypeError, ValueError) as error:
        raise EngineError(f"engine.json: expected axes of a paged engine, found another {error}: {AGAIN}") from error


def _plan(record: EngineRecord, bindings: StepBindings) -> MemoryPlan:
    advance = record.advance
    block, slot = pool_bytes(bindings.pools, NUM_BLOCKS), pool_bytes(bindings.pools, NUM_SLOTS)
    snapshots = snapshot_slots(bindings, record)
    rows = record.max_batch_size
    scratch = record.scratch_bytes, 0 if advance is None else advance.scratch_bytes, sampling_workspace(bindings)
    vocab, feeding = bindings.vocab_size, feeding_bytes(bindings.buckets[-1])
    inputs = [max(layout(bindings.inputs, size)[1] for size in bindings.largest_sizes)]
    sampled = [bindings.sampled_rows[-1]]
    if bindings.chains:
        # What steps that are launched ahead use in turn.
        inputs.append(layout(bindings.inputs, bindings.decode_size)[1])
        sampled.append(bindings.buckets[-1])
    blocks_of_rows = rows * (bindings.largest.blocks + 1)
    return MemoryPlan(
        engines=record.nbytes + (0 if advance is None else advance.nbytes),
        activations=aligned(max(1, *scratch)),
        inputs=sum(inputs),
        logits=bindings.largest.logits * bindings.vocab_size * bindings.logits.dtype.itemsize,
        sampling=sum(staged_bytes(count, vocab) for count in sampled),
        sampled=sum(mapped_bytes(count, vocab) for count in sampled) + 2 * feeding * bindings.chains,
        drafts=sum(map(bindings.stored_bytes, bindings.stored)) + snapshots * slot,
        hidden=_hidden_bytes(bindings),
        block=block,
        slot=slot,
        rows=blocks_of_rows * block + rows * slot,
        largest=bindings.num_blocks * block + (bindings.num_slots - snapshots) * slot,
        graphs=_graphs(bindings, captured_sizes(bindings, record), advance is not None),
    )


def captured_sizes(bindings: StepBindings, record: EngineRecord) -> CapturedSizes:
    """The sizes of the captured steps of the engine of ``record``."""
    return CapturedSizes(bindings, native_attention=_ATTENTION not in record.plugins.ops)


def sampling_workspace(bindings: StepBindings) -> int:
    """Memory that the sampling kernels use after a step, when the activations of contexts are not needed."""
    return workspace_bytes(bindings.sampled_rows[-1], bindings.vocab_size)


def snapshot_slots(bindings: StepBindings, record: EngineRecord) -> int:
    """Slots of every pool of states for the states after draft tokens."""
    if not bindings.drafts or record.advance is not None:
        return 0
    return record.max_batch_size * bindings.row_tokens


def _hidden_bytes(bindings: StepBindings) -> int:
    if bindings.hidden is HiddenForm.NONE:
        return 0
    row, own = bindings.hidden_row_bytes, bindings.largest.logits
    if bindings.hidden is HiddenForm.READ:
        return own * row
    return rows_bytes(0, bindings.most_tokens, own, row)


def _graphs(bindings: StepBindings, sizes: CapturedSizes, replays: bool) -> int:
    """Captured steps of every size, in each turn of the pools: with and without draft tokens and lists, and those
    launched ahead, in turns of their own."""
    buckets, turns = len(bindings.buckets), 1 + bindings.takes_turns
    drafts = bindings.row_tokens > 1
    steps = buckets * len(sizes.all_blocks) * ((1 + drafts) * 2 + 2 * bindings.chains) * turns
    return steps + (buckets * len(sizes.all_blocks) if replays else 0)
