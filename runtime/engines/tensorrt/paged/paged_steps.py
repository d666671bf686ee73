"""Runs packed steps on the device: captured ones by size, any other directly."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import fields

import numpy as np

from hybridge.artifact.names import LOGITS_INDICES, NUM_ACCEPTED_TOKENS, STATE_INDICES
from hybridge.runtime.engines.paged import PackedInputs
from hybridge.runtime.engines.rollback.draft_inputs import DraftInputs
from hybridge.runtime.engines.tensorrt.bound_context import BoundContext
from hybridge.runtime.engines.tensorrt.decode_step import DecodeStep
from hybridge.runtime.engines.tensorrt.memory import Allocation
from hybridge.runtime.engines.tensorrt.paged.captured_steps import CapturedSizes, blocks_used
from hybridge.runtime.engines.tensorrt.paged.loaded_engine import LoadedEngine
from hybridge.runtime.engines.tensorrt.paged.pools import DevicePools
from hybridge.runtime.engines.tensorrt.paged.step_arrays import ShapedArrays, StepArrays
from hybridge.runtime.engines.tensorrt.paged.step_bindings import StepBindings
from hybridge.runtime.engines.tensorrt.paged.step_logits import StepLogits
from hybridge.runtime.engines.tensorrt.paged.step_output import StepOutput
from hybridge.runtime.engines.tensorrt.paged.step_sampling import StepSampler, StepSampling, sampled_rows
from hybridge.runtime.engines.tensorrt.paged.step_size import StepSize
from hybridge.runtime.sampling import TokenSampling
from hybridge.trt_plugins.build.profiles import DECODE, PREFILL


class PagedSteps:
    """Steps of one engine. ``pools`` are bound to captured steps once; other steps run in one context."""

    def __init__(self, loaded: LoadedEngine, bindings: StepBindings, sizes: CapturedSizes, snapshots: bool) -> None:
        """Allocate for the largest step; ``snapshots``: the state after every draft token has a slot.

        EngineError when there is too little memory.
        """
        self._loaded, self._bindings, self._sizes, self._snapshots = loaded, bindings, sizes, snapshots
        self._captured: dict[tuple[StepSize, int, bool], tuple[DecodeStep, ShapedArrays]] = {}
        memory, self._owned = loaded.memory, ExitStack()
        try:
            self._arrays = StepArrays(memory, bindings.inputs, bindings.largest_sizes)
            self._owned.callback(self._arrays.free)
            self._logits = StepLogits(memory, bindings.largest.logits, bindings.vocab_size)
            self._owned.callback(self._logits.free)
            sizes_of_logits = sampled_rows(bindings.buckets, bindings.row_tokens)
            self._sampling = StepSampling(memory, bindings.vocab_size, sizes_of_logits, loaded.scratch_address)
            self._owned.callback(self._sampling.free)
            self.stored: dict[str, Allocation] = {}
            for output in bindings.stored:
                allocation = memory.allocate(bindings.stored_bytes(output), "the inputs of draft tokens")
                self.stored[output.name] = allocation
                self._owned.callback(allocation.free)
            self._mixed = loaded.context(PREFILL, fixed_shapes=False)
            self._owned.callback(self._mixed.close)
        except BaseException:
            self._owned.close()
            raise

    @property
    def captured(self) -> Mapping[tuple[StepSize, int, bool], tuple[DecodeStep, ShapedArrays]]:
        """The captured steps and their inputs, by size, turn of the pools, and whether likely tokens are listed."""
        return self._captured

    def run(self, inputs: PackedInputs, pools: DevicePools, samplings: Mapping[int, TokenSampling]) -> StepOutput:
        """Enqueue a step that fits a profile; the last step must be done. samplings: as in ``PagedEngine.launch``."""
        size = self._sizes.of(inputs)
        count = len(inputs.logits_indices)
        if size is None:
            size = StepSize(len(inputs.input_ids), len(inputs.seq_lens), blocks_used(inputs), max(1, count))
            rows = np.arange(count)
            sampler = self._sampling.of(size.logits, samplings)
            arrays = self._arrays.shaped(size)
            arrays.fill(self._fed(inputs))
            self._bind(self._mixed, arrays, pools)
            self._around(arrays, sampler, self._mixed.enqueue)
        else:
            # In a step of one token a row, every row has logits.
            every_row = size.tokens == size.rows
            rows = inputs.logits_indices.copy() if every_row else np.arange(count)
            sampler = self._sampling.of(size.logits, {int(rows[index]): how for index, how in samplings.items()})
            step, arrays = self._step(size, pools, sampler)
            arrays.fill(self._fed(inputs, every_row))
            step.run()
        pools.advance()
        return StepOutput(arrays, rows, self._logits, sampler)

    def forget(self) -> None:
        """Release the captured steps, whose pools are about to be freed; no step may be pending."""
        for step, _ in self._captured.values():
            step.close()
        self._captured.clear()

    def close(self) -> None:
        """Release everything; calling it twice is allowed."""
        self.forget()
        self._owned.close()

    def _step(self, size: StepSize, pools: DevicePools, sampler: StepSampler | None) -> tuple[DecodeStep, ShapedArrays]:
        key = size, pools.turn, sampler is not None and sampler.lists
        if key not in self._captured:
            arrays = self._arrays.shaped(size)
            # TensorRT needs a separate context for each captured graph.
            context = self._loaded.context(DECODE, fixed_shapes=True)
            self._bind(context, arrays, pools)
            step = DecodeStep(self._loaded.memory, context, lambda enqueue: self._around(arrays, sampler, enqueue))
            self._captured[key] = step, arrays
        return self._captured[key]

    def _around(self, arrays: ShapedArrays, sampler: StepSampler | None, enqueue: Callable[[], None]) -> None:
        arrays.upload()
        enqueue()
        if sampler is not None:
            sampler.enqueue(self._logits.address)

    def _bind(self, context: BoundContext, arrays: ShapedArrays, pools: DevicePools) -> None:
        addresses = {**arrays.addresses, **pools.addresses(), self._bindings.logits.name: self._logits.address}
        addresses |= {name: allocation.address for name, allocation in self.stored.items()}
        context.bind(addresses, {**arrays.shapes, **pools.shapes})

    def _fed(self, inputs: PackedInputs, every_row: bool = False) -> dict[str, np.ndarray]:
        """The arrays of ``inputs`` by input name. every_row: each row's token has logits."""
        fed = {field.name: getattr(inputs, field.name) for field in fields(inputs)}
        if isinstance(inputs, DraftInputs):
            fed[STATE_INDICES] = inputs.snapshot_slots if self._snapshots else inputs.state_indices
            fed[NUM_ACCEPTED_TOKENS] = inputs.num_accepted_tokens
        if every_row:
            fed[LOGITS_INDICES] = np.arange(len(inputs.seq_lens), dtype=np.int32)
        return fed
