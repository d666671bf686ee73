"""The TensorRT engine for paged artifacts: packed steps on this machine's GPU."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from hybridge.artifact.bindings import NUM_BLOCKS, NUM_SLOTS
from hybridge.artifact.errors import EngineError
from hybridge.runtime.engines.chained_steps import Feeding
from hybridge.runtime.engines.packed_check import check_packed, check_token_ids
from hybridge.runtime.engines.packed_inputs import PackedInputs
from hybridge.runtime.engines.pool_sizes import PoolSizes
from hybridge.runtime.engines.pooled import PackingEngine
from hybridge.runtime.engines.rollback.modes import AUTO
from hybridge.runtime.engines.step_result import StepResult
from hybridge.runtime.engines.tensorrt.engine_tensors import engine_tensors
from hybridge.runtime.engines.tensorrt.library import RuntimeLibrary
from hybridge.runtime.engines.tensorrt.memory import DeviceMemory, aligned
from hybridge.runtime.engines.tensorrt.opened_device import open_device
from hybridge.runtime.engines.tensorrt.paged.advance_engine import AdvanceSteps, advance_profiles
from hybridge.runtime.engines.tensorrt.paged.draft_rows import DraftRows
from hybridge.runtime.engines.tensorrt.paged.hidden_rows import DeviceRows
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
from hybridge.runtime.engines.tensorrt.paged.shown_states import ShownStates
from hybridge.runtime.engines.tensorrt.paged.step_bindings import StepBindings, engine_config, step_bindings
from hybridge.runtime.engines.tensorrt.paged.step_launcher import StepLauncher
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

    def __init__(
        self,
        folder: str | Path,
        built: BuiltEngine,
        memory: DeviceMemory,
        library: RuntimeLibrary,
        owns_device: bool = True,
    ) -> None:
        """Load the engine ``built`` with ``library`` onto the GPU of ``memory``.

        owns_device: both belong to this engine from now on.
        EngineError: a file is damaged, refused or not what its record says, or there is too little memory.
        """
        self.built = built
        self.memory, self.library = memory, library
        # Closed in the reverse order: contexts before the engines, the engines before the runtime.
        self._resources = ExitStack()
        if owns_device:
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
        built, owns, memory = self.built, self._resources.callback, self.memory
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
        self._shown = ShownStates(memory, self._steps, self._bindings, self.config)
        owns(self._shown.free)
        self._launcher = StepLauncher(memory, self._bindings, self._steps, self._drafts, self._shown)
        owns(self._launcher.close)
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
        self.memory.enter()
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
        self._pools = DevicePools(self.memory, self._bindings.pools, sizes, self._drafts.snapshots)

    @property
    def runs_ahead(self) -> bool:
        return True

    @property
    def samples_in_steps(self) -> bool:
        return True

    @property
    def chooses_later(self) -> bool:
        return True

    def choose(self, result: StepResult, samplings: Mapping[int, TokenSampling]) -> DeviceResult:
        assert isinstance(result, DeviceResult)
        self.memory.enter()
        return self._launcher.choose(result, samplings)

    @property
    def chains_steps(self) -> bool:
        return self._bindings.chains

    @property
    def shows_hidden_states(self) -> bool:
        return self._shown.exist

    def show_hidden_states(self, reserved: int) -> DeviceRows:
        self._check_open()
        self._settle()
        return self._shown.show(reserved)

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
        self.memory.enter()
        self._launcher.wait()
        self._drafts.advance(accepted)

    def step(self, inputs: PackedInputs) -> np.ndarray:
        return self.launch(inputs).all_logits()

    def launch(self, inputs: PackedInputs, samplings: Mapping[int, TokenSampling] = NO_SAMPLING) -> DeviceResult:
        self._check(inputs)
        self.memory.enter()
        return self._launcher.launch(inputs, self.pools, samplings)

    def launch_next(self, result: StepResult, inputs: PackedInputs, feeding: Feeding) -> DeviceResult | None:
        assert isinstance(result, DeviceResult)
        self._check(inputs)
        self.memory.enter()
        return self._launcher.launch_next(result, inputs, self.pools, feeding)

    def read_pool(self, name: str) -> np.ndarray:
        return self.pools.read(name)

    def fill_pools(self, value: float) -> None:
        self.pools.fill(value)

    @property
    def pool_limits(self) -> tuple[int, int]:
        return self._bindings.num_blocks, self._bindings.num_slots - self._drafts.snapshots

    def free_memory(self) -> int | None:
        self.memory.enter()
        return max(0, self.memory.free_bytes() - self._drafts.snapshots * self.slot_bytes)

    def memory_use(self) -> Mapping[str, int]:
        plan = memory_plan(self.built.record)
        return {
            "engine": plan.engines,
            "activations": plan.activations,
            "inputs and logits of a step": plan.inputs + plan.logits,
            "sampling": plan.sampling,
            "draft tokens": plan.drafts,
            "hidden states": plan.hidden,
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
        for end in (self._launcher.finish, self.memory.enter, self.memory.synchronize):
            with suppress(EngineError):
                end()
        self._resources.close()

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
        self.memory.enter()
        self._drafts.forget()
        self._launcher.finish()
        self.memory.synchronize()
