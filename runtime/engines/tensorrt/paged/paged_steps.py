"""Runs packed steps on the device: captured ones by size, any other directly."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import fields, replace
from functools import partial
from typing import NamedTuple

import numpy as np

from hybridge.artifact.names import LOGITS_INDICES, NUM_ACCEPTED_TOKENS, STATE_INDICES
from hybridge.runtime.engines.chained_steps import Feeding
from hybridge.runtime.engines.device_sampling import ChosenTokens
from hybridge.runtime.engines.packed_inputs import PackedInputs
from hybridge.runtime.engines.rollback.draft_inputs import DraftInputs
from hybridge.runtime.engines.tensorrt.bound_context import BoundContext
from hybridge.runtime.engines.tensorrt.decode_step import DecodeStep
from hybridge.runtime.engines.tensorrt.memory import Allocation
from hybridge.runtime.engines.tensorrt.paged.captured_steps import CapturedSizes, blocks_used
from hybridge.runtime.engines.tensorrt.paged.loaded_engine import LoadedEngine
from hybridge.runtime.engines.tensorrt.paged.pools import DevicePools
from hybridge.runtime.engines.tensorrt.paged.step_arrays import ShapedArrays
from hybridge.runtime.engines.tensorrt.paged.step_bindings import StepBindings
from hybridge.runtime.engines.tensorrt.paged.step_hidden import StepHidden
from hybridge.runtime.engines.tensorrt.paged.step_logits import StepLogits
from hybridge.runtime.engines.tensorrt.paged.step_output import StepOutput
from hybridge.runtime.engines.tensorrt.paged.step_size import StepSize
from hybridge.runtime.engines.tensorrt.paged.step_turn import StepTurn
from hybridge.runtime.engines.tensorrt.step_sampling import StepSampler
from hybridge.runtime.sampling import CHOSEN_LATER, TokenSampling
from hybridge.trt_plugins.build.profiles import DECODE, PREFILL


class StepKey(NamedTuple):
    """A captured step: its size, the turn of the pools, whether it samples tokens and lists likely ones, whether its
    rows are fed on the device, and its own turn."""

    size: StepSize
    pools_turn: int
    samples: bool
    lists: bool
    fed: bool
    turn: int


class PagedSteps:
    """Steps of one engine. ``pools`` are bound to captured steps once; other steps run in one context."""

    def __init__(self, loaded: LoadedEngine, bindings: StepBindings, sizes: CapturedSizes, snapshots: bool) -> None:
        """Allocate for the largest step; ``snapshots``: the state after every draft token has a slot.

        EngineError when there is too little memory.
        """
        self._loaded, self._bindings, self._sizes, self._snapshots = loaded, bindings, sizes, snapshots
        self._captured: dict[StepKey, tuple[DecodeStep, ShapedArrays]] = {}
        self._turns: list[StepTurn] = []
        self._turn = 0
        self._hidden = StepHidden()
        memory, self._owned = loaded.memory, ExitStack()
        try:
            for chained in (False, True) if bindings.chains else (False,):
                self._turns.append(StepTurn(memory, bindings, loaded.scratch_address, chained))
                self._owned.callback(self._turns[-1].free)
            self._logits = StepLogits(memory, bindings.largest.logits, bindings.vocab_size)
            self._owned.callback(self._logits.free)
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
    def captured(self) -> Mapping[StepKey, tuple[DecodeStep, ShapedArrays]]:
        """The captured steps and their inputs."""
        return self._captured

    def use_hidden(self, hidden: StepHidden) -> None:
        """Bind all later steps to ``hidden``; no step may be pending."""
        self.forget()
        self._hidden = hidden

    def run(self, inputs: PackedInputs, pools: DevicePools, samplings: Mapping[int, TokenSampling]) -> StepOutput:
        """Enqueue a step that fits a profile; all others must be done. samplings: as in ``PagedEngine.launch``."""
        self._turn = 0
        size = self._sizes.of(inputs)
        count = len(inputs.logits_indices)
        if size is not None:
            # In a step of one token a row, every row has logits.
            every_row = size.tokens == size.rows
            rows = inputs.logits_indices.copy() if every_row else np.arange(count)
            if samplings is not CHOSEN_LATER:
                samplings = {int(rows[index]): how for index, how in samplings.items()}
            return self._run_captured(inputs, size, pools, samplings, rows, every_row)
        size = StepSize(len(inputs.input_ids), len(inputs.seq_lens), blocks_used(inputs), max(1, count))
        turn = self._turns[0]
        sampler = None if samplings is CHOSEN_LATER else turn.sampling.of(size.logits, samplings)
        arrays = turn.arrays.shaped(size)
        arrays.fill(self._fed(inputs))
        self._bind(self._mixed, arrays, pools)
        self._around(arrays, sampler, None, self._mixed.enqueue)
        pools.advance()
        return StepOutput(arrays, np.arange(count), self._logits, sampler)

    def choose(self, output: StepOutput, samplings: Mapping[int, TokenSampling]) -> StepOutput:
        """Enqueue sampling behind the last step that ``run`` has enqueued, which was given CHOSEN_LATER."""
        by_row = {int(output.rows[index]): how for index, how in samplings.items()}
        sampler = self._turns[0].sampling.of(output.arrays.size.logits, by_row)
        if sampler is not None:
            sampler.enqueue(self._logits.address)
        return replace(output, sampler=sampler)

    def run_next(
        self, inputs: PackedInputs, pools: DevicePools, tokens: ChosenTokens, feeding: Feeding, sources: Sequence[int]
    ) -> StepOutput | None:
        """Enqueue a step of one token a row while the step before it runs; None where no captured step is as large.

        Each row gets the token of its source among ``tokens``. The step before that must be done."""
        size = self._sizes.of(inputs)
        if size is None or size.tokens != size.rows:
            return None
        self._turn = 1 - self._turn
        feeder = self._turns[self._turn].feeding
        assert feeder is not None
        feeder.prepare(size.rows)
        feeder.tables.fill(tokens, feeding.stops, sources)
        return self._run_captured(inputs, size, pools, feeding.samplings, np.arange(len(inputs.seq_lens)), fed=True)

    def forget(self) -> None:
        """Release the captured steps, whose pools are about to be freed; no step may be pending."""
        for step, _ in self._captured.values():
            step.close()
        self._captured.clear()

    def close(self) -> None:
        """Release everything; calling it twice is allowed."""
        self.forget()
        self._owned.close()

    def _run_captured(
        self,
        inputs: PackedInputs,
        size: StepSize,
        pools: DevicePools,
        samplings: Mapping[int, TokenSampling],
        rows: np.ndarray,
        every_row: bool = True,
        fed: bool = False,
    ) -> StepOutput:
        """samplings: by row of logits. rows, every_row: as in StepOutput, and whether each row's token has logits."""
        sampling = self._turns[self._turn].sampling
        sampler = None if samplings is CHOSEN_LATER else sampling.of(size.logits, samplings)
        samples, lists = sampler is not None, sampler is not None and sampler.lists
        key = StepKey(size, pools.turn, samples, lists, fed, self._turn)
        step, arrays = self._step(key, pools, sampler)
        arrays.fill(self._fed(inputs, every_row))
        step.run()
        pools.advance()
        return StepOutput(arrays, rows, self._logits, sampler)

    def _step(self, key: StepKey, pools: DevicePools, sampler: StepSampler | None) -> tuple[DecodeStep, ShapedArrays]:
        if key not in self._captured:
            arrays = self._turns[key.turn].arrays.shaped(key.size)
            # TensorRT needs a separate context for each captured graph.
            context = self._loaded.context(DECODE, fixed_shapes=True)
            self._bind(context, arrays, pools)
            feeding = self._turns[key.turn].feeding if key.fed else None
            feed = None if feeding is None else partial(feeding.enqueue, key.size.rows, arrays.addresses)
            step = DecodeStep(self._loaded.memory, context, partial(self._around, arrays, sampler, feed))
            self._captured[key] = step, arrays
        return self._captured[key]

    def _around(
        self,
        arrays: ShapedArrays,
        sampler: StepSampler | None,
        feed: Callable[[], None] | None,
        enqueue: Callable[[], None],
    ) -> None:
        arrays.upload()
        if feed is not None:
            feed()
        enqueue()
        self._hidden.after(arrays.size.logits)
        if sampler is not None:
            sampler.enqueue(self._logits.address)

    def _bind(self, context: BoundContext, arrays: ShapedArrays, pools: DevicePools) -> None:
        addresses = {**arrays.addresses, **pools.addresses(), self._bindings.logits.name: self._logits.address}
        addresses |= {name: allocation.address for name, allocation in self.stored.items()}
        addresses |= self._hidden.addresses
        context.bind(addresses, {**arrays.shapes, **pools.shapes, **self._hidden.shapes})

    def _fed(self, inputs: PackedInputs, every_row: bool = False) -> dict[str, np.ndarray]:
        """The arrays of ``inputs`` by input name. every_row: each row's token has logits."""
        fed = {field.name: getattr(inputs, field.name) for field in fields(inputs)}
        if isinstance(inputs, DraftInputs):
            fed[STATE_INDICES] = inputs.snapshot_slots if self._snapshots else inputs.state_indices
            fed[NUM_ACCEPTED_TOKENS] = inputs.num_accepted_tokens
        if every_row:
            fed[LOGITS_INDICES] = np.arange(len(inputs.seq_lens), dtype=np.int32)
        return fed
