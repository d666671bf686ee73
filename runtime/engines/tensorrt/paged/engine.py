"""The TensorRT engine for paged artifacts: packed steps on this machine's GPU."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from hybridge.artifact.bindings import NUM_BLOCKS, NUM_SLOTS
from hybridge.artifact.errors import EngineError
from hybridge.runtime.engines.feeding_tables import can_feed
from hybridge.runtime.engines.packed_check import check_packed, check_token_ids
from hybridge.runtime.engines.paged import Feeding, PackedInputs, PoolSizes
from hybridge.runtime.engines.pooled import PackingEngine
from hybridge.runtime.engines.rollback.modes import AUTO
from hybridge.runtime.engines.step_result import StepResult
from hybridge.runtime.engines.tensorrt.engine_tensors import engine_tensors
from hybridge.runtime.engines.tensorrt.library import RuntimeLibrary
from hybridge.runtime.engines.tensorrt.memory import DeviceMemory, aligned
from hybridge.runtime.engines.tensorrt.opened_device import open_device
from hybridge.runtime.engines.tensorrt.paged.advance_engine import AdvanceSteps, advance_profiles
from hybridge.runtime.engines.tensorrt.paged.draft_rows import DraftRows
from hybridge.runtime.engines.tensorrt.paged.loaded_engine import LoadedEngine
from hybridge.runtime.engines.tensorrt.paged.memory_plan import (
    captured_sizes,
    memory_plan,
    sampling_workspace,
    snapshot_slots,
)
from hybridge.runtime.engines.tensorrt.paged.paged_steps import PagedSteps
from hybridge.runtime.engines.tensorrt.paged.pools import DevicePools, pool_bytes
from hybridge.runtime.engines.tensorrt.paged.result import DeviceResult
from hybridge.runtime.engines.tensorrt.paged.step_bindings import StepBindings, engine_config, step_bindings
from hybridge.runtime.engines.tensorrt.paged.step_output import StepOutput
from hybridge.runtime.engines.tensorrt.paged.step_parts import StepPart, step_parts
from hybridge.runtime.engines.tensorrt.pending_step import PendingStep
from hybridge.runtime.engines.tensorrt.plan_check import load_plan
from hybridge.runtime.engines.tensorrt.selection import BuiltEngine, find_engine
from hybridge.runtime.sampling import NO_SAMPLING, TokenSampling
from hybridge.trt_plugins.build.profiles import PAGED_BLOCK_SIZE


class TensorRTPagedEngine(PackingEngine[DevicePools]):
    """Runs an engine that ``hybridge build-engine`` made of a paged artifact, in the types of the artifact.

    All work goes to one stream. A step whose rows have one token each, or draft tokens, runs in a captured step of the
    next larger number of rows; any other in the context of the prefill profile. A step that fits neither is split.
    """

    name: ClassVar[str] = "tensorrt"

    def __init__(self, folder: str | Path, built: BuiltEngine, memory: DeviceMemory, library: RuntimeLibrary) -> None:
        """Load the engine ``built`` with ``library`` onto the GPU of ``memory``; both then belong to this engine.

        EngineError: a file is damaged, refused or not what its record says, or there is too little memory.
        """
        self.built = built
        self._memory = memory
        # Steps that may still run, in order: at most the last two, where the last was launched ahead.
        self._pending: list[PendingStep[StepOutput]] = []
        # Closed in the reverse order: contexts before the engines, the engines before the runtime.
        self._resources = ExitStack()
        self._resources.callback(memory.close)
        self._resources.callback(library.close)
        self._closed = False
        try:
            super().__init__(folder)
            self.config = engine_config(self.config, built.record)
            self._load(library)
        except BaseException:
            self._resources.close()
            raise

    @classmethod
    def from_folder(cls, folder: Path, engine_folder: str | Path | None = None) -> TensorRTPagedEngine:
        """The engine of the artifact ``folder``; arguments and errors as in ``TensorRTEngine.from_folder``."""
        built = find_engine(folder, engine_folder)
        return cls(folder, built, *open_device(built))

    def _load(self, library: RuntimeLibrary) -> None:
        built, owns, memory = self.built, self._resources.callback, self._memory
        record = built.record
        plan: Any = load_plan(library, built)
        self._bindings: StepBindings = step_bindings(self.config, record, engine_tensors(library.trt, plan))
        scratch_bytes = plan.device_memory_size_v2
        advance: Any = None
        if record.advance is not None:
            advance = load_plan(library, built, record.advance)
            tensors = engine_tensors(library.trt, advance)
            profiles = advance_profiles(self.config, self._bindings, record.advance, tensors)
            scratch_bytes = max(scratch_bytes, advance.device_memory_size_v2)
        # The sampling kernels run after the engine, when its activations are no longer needed.
        scratch_bytes = max(scratch_bytes, sampling_workspace(self._bindings))
        scratch = memory.allocate(aligned(max(1, scratch_bytes)), "activations")
        owns(scratch.free)
        loaded = LoadedEngine(library, memory, plan, scratch, self._bindings.profiles)
        owns(loaded.close)
        self._sizes = captured_sizes(self._bindings, record)
        self._steps = PagedSteps(loaded, self._bindings, self._sizes, snapshots=record.advance is None)
        owns(self._steps.close)
        advance_steps = None
        if record.advance is not None:
            second = LoadedEngine(library, memory, advance, scratch, profiles)
            owns(second.close)
            advance_steps = AdvanceSteps(second, self._bindings, self._steps.stored)
            owns(advance_steps.close)
        self._drafts = DraftRows(self._bindings, advance_steps, snapshot_slots(self._bindings, record))
        self._markers = [memory.marker() for _ in range(1 + self._bindings.chains)]
        for marker in self._markers:
            owns(marker.close)
        owns(self._free_pools)
        self._specs = tuple(pool.spec for pool in self._bindings.pools)
        self._step_tokens = self._bindings.largest.tokens

    @property
    def bindings(self) -> StepBindings:
        """The bindings of a step, and its limits."""
        return self._bindings

    @property
    def steps(self) -> PagedSteps:
        """The prepared steps."""
        return self._steps

    @property
    def drafts(self) -> DraftRows:
        """The rows that wait for ``advance``."""
        return self._drafts

    @property
    def pools(self) -> DevicePools:
        """The pools, with the GPU current in the calling thread; EngineError before ``allocate_pools``."""
        self._memory.enter()
        return super().pools

    @property
    def slot_bytes(self) -> int:
        return pool_bytes(self._bindings.pools, NUM_SLOTS)

    def block_size(self, preferred: int) -> int:
        return PAGED_BLOCK_SIZE

    def block_bytes(self, block_size: int) -> int:
        if block_size != PAGED_BLOCK_SIZE:
            raise EngineError(
                f"expected blocks of {PAGED_BLOCK_SIZE} tokens, which the engine has, found {block_size}: choose these"
            )
        return block_size * pool_bytes(self._bindings.pools, NUM_BLOCKS)

    def allocate_pools(self, sizes: PoolSizes) -> None:
        self.block_bytes(sizes.block_size)
        self._check_open()
        self._check_sizes(sizes)
        self._settle()
        self._free_pools()
        self._pools = DevicePools(self._memory, self._bindings.pools, sizes, self._drafts.snapshots)

    @property
    def runs_ahead(self) -> bool:
        return True

    @property
    def samples_in_steps(self) -> bool:
        return True

    @property
    def chains_steps(self) -> bool:
        return self._bindings.chains

    @property
    def max_rollback_tokens(self) -> int:
        return self._bindings.row_tokens if self._bindings.drafts else 0

    @property
    def no_rollback(self) -> str:
        return (
            "the tensorrt engine was built without draft tokens: run hybridge build-engine again with "
            "--speculative-tokens"
        )

    @property
    def rollback_token_bytes(self) -> int:
        return self._drafts.token_bytes

    def prepare_rollback(self, rows: int, tokens: int, mode: str | Mapping[str, str] = AUTO) -> None:
        if not self._bindings.drafts:
            raise EngineError(self.no_rollback)
        self._drafts.check(rows, tokens, mode)

    def advance(self, accepted: np.ndarray) -> None:
        self._check_open()
        self._memory.enter()
        for pending in self._pending:
            pending.wait()
        self._drafts.advance(accepted)

    def step(self, inputs: PackedInputs) -> np.ndarray:
        return self.launch(inputs).all_logits()

    def launch(self, inputs: PackedInputs, samplings: Mapping[int, TokenSampling] = NO_SAMPLING) -> DeviceResult:
        self._check(inputs)
        self._memory.enter()
        # The pinned inputs and logits of the step before are about to be overwritten.
        self._finish_pending()
        self._drafts.forget()
        *first, last = step_parts(inputs, self._bindings.row_tokens, self._bindings.largest.logits)
        before = np.empty((len(inputs.logits_indices) if first else 0, self.config.vocab_size), np.float32)
        for part in first:
            pending = self._recorded(self._enqueue(part, inputs))
            before[part.logits] = DeviceResult(pending, before[:0], part.logits).all_logits()
        index_in_last = {index: own for own, index in enumerate(last.logits.tolist())}
        here = {index_in_last[index]: how for index, how in samplings.items() if index in index_in_last}
        output = self._enqueue(last, inputs, here)
        self._pending.append(self._recorded(output))
        return DeviceResult(self._pending[-1], before, last.logits, None if first else output.tokens)

    def launch_next(self, result: StepResult, inputs: PackedInputs, feeding: Feeding) -> DeviceResult | None:
        assert isinstance(result, DeviceResult)
        tokens = result.tokens
        if tokens is None or not can_feed(feeding.stops):
            return None
        assert self._pending and result.is_of(self._pending[-1]), "another step was launched after that of the result"
        self._check(inputs)
        self._memory.enter()
        # The pinned inputs of the step before that are about to be overwritten.
        self._finish_pending(keep=1)
        output = self._steps.run_next(inputs, self.pools, tokens, feeding)
        if output is None:
            return None
        result.lose_logits()
        self._pending.append(self._recorded(output))
        nothing = np.empty((0, self.config.vocab_size), np.float32)
        return DeviceResult(self._pending[-1], nothing, output.rows, output.tokens)

    def read_pool(self, name: str) -> np.ndarray:
        return self.pools.read(name)

    def fill_pools(self, value: float) -> None:
        self.pools.fill(value)

    @property
    def pool_limits(self) -> tuple[int, int]:
        return self._bindings.num_blocks, self._bindings.num_slots - self._drafts.snapshots

    def free_memory(self) -> int | None:
        self._memory.enter()
        return max(0, self._memory.free_bytes() - self._drafts.snapshots * self.slot_bytes)

    def memory_use(self) -> Mapping[str, int]:
        plan = memory_plan(self.built.record)
        return {
            "engine": plan.engines,
            "activations": plan.activations,
            "inputs and logits of a step": plan.inputs + plan.logits,
            "sampling": plan.sampling,
            "draft tokens": plan.drafts,
        }

    def padded_rows(self, rows: int) -> int:
        return self._sizes.padded_rows(rows)

    def padded_blocks(self, blocks: int) -> int:
        return self._sizes.padded_blocks(blocks)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        # A failure of the last step is no reason to keep anything.
        for end in (self._finish_pending, self._memory.enter, self._memory.synchronize):
            with suppress(EngineError):
                end()
        self._resources.close()

    def _enqueue(
        self, part: StepPart, whole: PackedInputs, samplings: Mapping[int, TokenSampling] = NO_SAMPLING
    ) -> StepOutput:
        """Enqueue one part of the step ``whole``; samplings: by index of the part's logits."""
        pools = self.pools
        inputs, deferred = self._drafts.inputs(part, pools)
        output = self._steps.run(inputs, pools, samplings)
        if deferred is not None:
            self._drafts.defer(deferred, part, len(whole.seq_lens), output.arrays, pools)
        return output

    def _recorded(self, output: StepOutput) -> PendingStep[StepOutput]:
        """The step of ``output``, which ends where the stream ends now; takes the marker of one that is done."""
        marker = self._markers.pop(0)
        self._markers.append(marker)
        marker.record()
        return PendingStep(marker, lambda: output)

    def _check(self, inputs: PackedInputs) -> None:
        self._check_open()
        check_packed(inputs, self.limits, self.config, self.pools.sizes, self.max_rollback_tokens)
        check_token_ids(inputs.input_ids, self.config.vocab_size)

    def _check_sizes(self, sizes: PoolSizes) -> None:
        blocks, slots = self.pool_limits
        for what, found, most, exists in (
            ("blocks", sizes.num_blocks, blocks, bool(self.config.kv_layers)),
            ("slots", sizes.num_slots, slots, bool(self.config.recurrent_layers)),
        ):
            if exists and found > most:
                raise EngineError(
                    f"expected pools of at most {most} {what}, for which the engine was built, found {found}: lower "
                    "`memory_bytes`"
                )

    def _check_open(self) -> None:
        if self._closed:
            raise EngineError("expected an open engine, found one that was closed: create it again")

    def _free_pools(self) -> None:
        """Release the pools and what was bound to them; no step may be pending."""
        self._steps.forget()
        self._drafts.release()
        if self._pools is not None:
            self._pools.free()
            self._pools = None

    def _settle(self) -> None:
        """Wait for all work, whose results can no longer be read."""
        self._memory.enter()
        self._drafts.forget()
        self._finish_pending()
        self._memory.synchronize()

    def _finish_pending(self, keep: int = 0) -> None:
        """Wait for all steps but the last ``keep``, whose results can no longer be read."""
        while len(self._pending) > keep:
            self._pending.pop(0).finish()
