"""Execution of a packed step: directly, or on a GPU as prepared for its shape."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping

import numpy as np
import torch

from hybridge.artifact.errors import UnsupportedError
from hybridge.artifact.names import LOGITS, QUERY_START_LOC
from hybridge.runtime.engines.chained_steps import Feeding, PreparedNext
from hybridge.runtime.engines.feeding_tables import can_feed
from hybridge.runtime.engines.packed_inputs import PackedInputs
from hybridge.runtime.engines.rollback.draft_inputs import DraftInputs
from hybridge.runtime.engines.step_limits import StepLimits
from hybridge.runtime.engines.torch.best_tokens import best_in
from hybridge.runtime.engines.torch.chained_step import ChainedStep
from hybridge.runtime.engines.torch.deferred_states import DeferredStates
from hybridge.runtime.engines.torch.device import TorchDevice
from hybridge.runtime.engines.torch.fusion import Phase
from hybridge.runtime.engines.torch.packed_buffers import PackedBuffers
from hybridge.runtime.engines.torch.packed_step import PackedStep, StepShape, rows_in
from hybridge.runtime.engines.torch.paged_decode import PagedDecodeStep, padded_blocks, padded_rows
from hybridge.runtime.engines.torch.paged_pools import TorchPools
from hybridge.runtime.engines.torch.paged_result import TorchStepResult
from hybridge.runtime.engines.torch.program import StepProgram
from hybridge.runtime.engines.torch.recording import RepeatedWork
from hybridge.runtime.engines.torch.sampling_memory import TorchSampling, torch_sampling
from hybridge.runtime.engines.torch.step_memory import StepMemory
from hybridge.runtime.engines.torch.step_shapes import STEP, draft_shape, multiple, own_shape, padded_shape
from hybridge.runtime.sampling import NO_SAMPLING, TokenSampling

# Shapes of mixed steps that stay prepared, those that came last.
MOST_MIXED = 128
Programs = Callable[[Phase], StepProgram]


class PagedSteps:
    """Steps over one set of pools; what is prepared for a shape is made with its first step.

    decode      one token a row, by rows and blocks
    sampling    the same with tokens sampled in the step, by rows, blocks and whether likely tokens are listed
    chained     steps that are fed by the one before, by rows, blocks, one of two turns and whether tokens are sampled
    drafts      rows with draft tokens, by shape
    sampling_drafts     the same with tokens sampled in the step, by shape and whether likely tokens are listed
    mixed       rows of any length, by shape, the latest last
    """

    def __init__(
        self, device: TorchDevice, limits: StepLimits, memory: StepMemory, vocab: int, chains: bool = False
    ) -> None:
        """``chains``: whether steps may be launched while the step before them runs."""
        self.decode: dict[tuple[int, int], PagedDecodeStep] = {}
        self.sampling: dict[tuple[int, int, bool], PagedDecodeStep] = {}
        self.chained: dict[tuple[int, int, bool, bool], ChainedStep] = {}
        self.drafts: dict[StepShape, PackedStep] = {}
        self.sampling_drafts: dict[tuple[StepShape, bool], PackedStep] = {}
        self.mixed: OrderedDict[StepShape, PackedStep] = OrderedDict()
        self._device, self._limits, self._memory = device, limits, memory
        self._vocab, self._chains = vocab, chains
        # Decode steps of at least that many rows, padding included, use rings; None: no step does.
        self.ring_rows: int | None = None
        # By rows of logits, whether likely tokens are listed, and the turn of a step that is launched in a chain.
        self._choosers: dict[tuple[int, bool, bool | None], TorchSampling] = {}
        # By whether likely tokens are listed, and by rows and address of the logits.
        self._choices: dict[tuple[bool, int, int], RepeatedWork] = {}
        # After the last sampling behind a step.
        self._chosen = torch.cuda.Event() if device.is_gpu else None
        # Steps of a chain take turns, as each is launched while the one before still runs.
        self._turn = False
        # Of the last step, as in ``_chooser``.
        self._drafts = 0
        # The last step, if it was a mixed one.
        self._last: PackedStep | None = None

    def launch(
        self,
        inputs: PackedInputs,
        pools: TorchPools,
        programs: Programs,
        deferred: DeferredStates | None,
        samplings: Mapping[int, TokenSampling] = NO_SAMPLING,
    ) -> TorchStepResult:
        """Compute a step on a GPU as it has been prepared. deferred: the states that it leaves unchanged, if any."""
        rows, block_size = len(inputs.seq_lens), pools.sizes.block_size
        drafts = self._drafts = _drafts(inputs)
        self._last = None
        if len(inputs.input_ids) == rows and not drafts:
            key = padded_rows(rows, self._limits.max_rows), padded_blocks(inputs.block_table.shape[1], block_size)
            if samplings and (chooser := self._chooser(key[0], samplings)) is not None:
                return self._sampling_step(inputs, pools, programs, key, samplings, chooser)
            decode = self.decode.get(key)
            if decode is None:
                decode = self.decode[key] = PagedDecodeStep(self._device, programs(self._decoding(key[0])), pools, *key)
            return decode.launch(inputs)
        if drafts and np.diff(inputs.query_start_loc).max() <= 1 + drafts:
            shape = draft_shape(inputs, drafts, self._limits.max_rows, block_size)
            if samplings and (chooser := self._chooser(shape.size.logits, samplings, drafts)) is not None:
                return self._sampling_drafts(inputs, shape, pools, programs, deferred, samplings, chooser)
            step = self.drafts.get(shape)
            if step is None:
                step = self.drafts[shape] = self._made(inputs, shape, pools, programs, deferred)
            return step.launch(inputs)
        return self._mixed_step(inputs, pools, programs, deferred, samplings)

    def choose(self, result: TorchStepResult, samplings: Mapping[int, TokenSampling]) -> TorchStepResult:
        """As ``PagedEngine.choose``."""
        if not samplings:
            return result
        chooser = self._chooser(len(result.device_logits), samplings, self._drafts)
        if chooser is None:
            result.lose_tokens()  # the host samples
            return result
        chooser.prepare(result.by_row(samplings))
        self._choose(chooser, result)
        return result.choosing(chooser, self._chosen)

    def _choose(self, chooser: TorchSampling, result: TorchStepResult) -> None:
        """Enqueue sampling by ``chooser``, which has been prepared."""
        chooser.send()
        with self._device.active():
            self._choice(chooser, result.device_logits).run()
        if self._chosen is not None:
            self._chosen.record(self._device.stream)

    def prepare_next(
        self,
        result: TorchStepResult,
        samplings: Mapping[int, TokenSampling],
        inputs: PackedInputs,
        feeding: Feeding,
        block_size: int,
    ) -> PreparedNext | None:
        """``PagedEngine.prepare_next`` of decode steps that have been prepared before."""
        step = self.chained.get(self._next_key(inputs, block_size, bool(feeding.samplings)))
        chooser = self._chooser(len(result.device_logits), samplings, self._drafts) if samplings else None
        is_decode = len(inputs.input_ids) == len(inputs.seq_lens)
        if step is None or chooser is None or not (is_decode and result.can_feed and can_feed(feeding.stops)):
            return None
        chooser.prepare(result.by_row(samplings))
        chosen = result.choosing(chooser, self._chosen)
        step.prepare(inputs, chosen, feeding)

        def choose() -> TorchStepResult:
            self._choose(chooser, result)
            return chosen

        def launch() -> TorchStepResult:
            self._turn, self._last = not self._turn, None
            chosen.lose_logits()
            return step.run(inputs)

        return PreparedNext(choose, launch)

    def _next_key(self, inputs: PackedInputs, block_size: int, samples: bool) -> tuple[int, int, bool, bool]:
        """The key in ``chained`` of a decode step that is launched now."""
        rows, width = len(inputs.seq_lens), inputs.block_table.shape[1]
        return padded_rows(rows, self._limits.max_rows), padded_blocks(width, block_size), not self._turn, samples

    def _choice(self, chooser: TorchSampling, logits: torch.Tensor) -> RepeatedWork:
        """Sampling by ``chooser``, which is that of all logits of this size: recorded behind steps that come again."""
        key = chooser.lists, len(logits), logits.data_ptr()
        found = self._choices.get(key)
        if found is None:
            found = RepeatedWork(self._device, lambda: chooser.enqueue(logits))
            if self._last is None and not self._drafts:
                self._choices[key] = found
        return found

    def launch_next(
        self,
        result: TorchStepResult,
        inputs: PackedInputs,
        pools: TorchPools,
        programs: Programs,
        feeding: Feeding,
    ) -> TorchStepResult | None:
        """``PagedEngine.launch_next`` on a GPU."""
        rows, samples = len(inputs.seq_lens), bool(feeding.samplings)
        if not (result.can_feed and can_feed(feeding.stops)):
            return None
        if len(inputs.input_ids) > rows:
            shape, _ = padded_shape(inputs, 0, pools.sizes.block_size)
            if self._last is not None and self._last is self.mixed.get(shape):
                return None  # it still runs: to record a second one would take longer than to wait for it
            self._turn = not self._turn
            result.lose_logits()
            return self._mixed_step(inputs, pools, programs, None, feeding.samplings, (result, feeding))
        key = self._next_key(inputs, pools.sizes.block_size, samples)
        size = key[:2]
        step = self.chained.get(key)
        if step is None:
            try:
                chooser = torch_sampling(self._device, size[0], self._vocab, lists=False) if samples else None
            except UnsupportedError:
                return None
            step = ChainedStep(self._device, programs(self._decoding(size[0])), pools, size, chooser)
            self.chained[key] = step
        self._turn, self._last = not self._turn, None
        result.lose_logits()
        return step.launch(inputs, result, feeding)

    def run(
        self, inputs: PackedInputs, pools: TorchPools, program: StepProgram, deferred: DeferredStates | None
    ) -> tuple[TorchStepResult, Mapping[str, torch.Tensor]]:
        """Compute a step immediately; also returns the outputs of its program."""
        drafts, device = _drafts(inputs), self._device
        if device.is_gpu:
            shape, split = padded_shape(inputs, drafts, pools.sizes.block_size)
        else:
            shape, split = own_shape(inputs, drafts)
        with device.active(), self._memory.of_step(len(inputs.input_ids)):
            buffers = PackedBuffers(device, shape.size, drafts, program.extra)
            buffers.fill(inputs, split=split)
            buffers.upload()
            stored = None if deferred is None else deferred.calls(shape.size, buffers.tensors)
            rows = rows_in(buffers, shape, stored)
            found = program.run({**buffers.tensors, **pools.tensors, QUERY_START_LOC: rows})
            if deferred is not None and stored is not None:
                stored.finish()
                deferred.ran(stored)
            best = best_in(found)
            host = device.pinned(*best.shape, dtype=best.dtype)
            host.copy_(best, non_blocking=True)
        return TorchStepResult(device, host.numpy(), found[LOGITS], slice(0, len(inputs.logits_indices))), found

    def forget(self) -> None:
        """Release the prepared steps."""
        self.decode.clear()
        self.sampling.clear()
        self.chained.clear()
        self._choosers.clear()
        self._choices.clear()
        self.drafts.clear()
        self.sampling_drafts.clear()
        self.mixed.clear()
        self._last = None

    def _mixed_step(
        self,
        inputs: PackedInputs,
        pools: TorchPools,
        programs: Programs,
        deferred: DeferredStates | None,
        samplings: Mapping[int, TokenSampling],
        fed: tuple[TorchStepResult, Feeding] | None = None,
    ) -> TorchStepResult:
        """Launch a step with rows of any length. fed: the step that still runs, and how its tokens are fed."""
        drafts = _drafts(inputs)
        shape, split = padded_shape(inputs, drafts, pools.sizes.block_size)
        step = self.mixed.pop(shape, None)
        if step is None:
            if len(self.mixed) >= MOST_MIXED:
                self.mixed.popitem(last=False)
            step = self._made(inputs, shape, pools, programs, deferred, chains=self._chains and not drafts)
        self.mixed[shape] = self._last = step
        turn = None if fed is None else self._turn
        chooser = self._chooser(step.logits, samplings, drafts, turn) if samplings else None
        if chooser is not None:
            chooser.fill(samplings)
        with self._memory.of_step(len(inputs.input_ids)):
            result = step.launch(inputs, split, chooser, fed)
        if samplings and chooser is None:
            result.lose_tokens()  # the host samples
        return result

    def _sampling_step(
        self,
        inputs: PackedInputs,
        pools: TorchPools,
        programs: Programs,
        size: tuple[int, int],
        samplings: Mapping[int, TokenSampling],
        chooser: TorchSampling,
    ) -> TorchStepResult:
        """Launch a step of ``size`` (rows, blocks) with one token per row that samples tokens."""
        key = *size, chooser.lists
        step = self.sampling.get(key)
        if step is None:
            step = PagedDecodeStep(self._device, programs(self._decoding(size[0])), pools, *size, chooser)
            self.sampling[key] = step
        indices = inputs.logits_indices
        chooser.fill({int(indices[index]): draw for index, draw in samplings.items()})
        return step.launch(inputs)

    def _sampling_drafts(
        self,
        inputs: PackedInputs,
        shape: StepShape,
        pools: TorchPools,
        programs: Programs,
        deferred: DeferredStates | None,
        samplings: Mapping[int, TokenSampling],
        chooser: TorchSampling,
    ) -> TorchStepResult:
        """Launch a step of rows with draft tokens that also samples the tokens after these."""
        key = shape, chooser.lists
        step = self.sampling_drafts.get(key)
        if step is None:
            step = self.sampling_drafts[key] = self._made(inputs, shape, pools, programs, deferred, chooser)
        chooser.fill(samplings)
        return step.launch(inputs)

    def _chooser(
        self, rows: int, samplings: Mapping[int, TokenSampling], drafts: int = 0, turn: bool | None = None
    ) -> TorchSampling | None:
        """The sampler for steps with ``rows`` rows of logits; None where the host must sample.

        drafts: the most draft tokens of a row whose states are deferred. turn: of a step that is launched in a chain.
        """
        most = max(self._limits.max_rows * (1 + drafts), 2 * len(samplings))
        if rows > multiple(most, STEP):
            return None  # a prompt with log-probabilities: the kernels' buffers would grow with its length
        lists = any(draw.params.logprobs is not None for draw in samplings.values())
        found = self._choosers.get((rows, lists, turn))
        if found is None:
            try:
                found = torch_sampling(self._device, rows, self._vocab, lists)
            except UnsupportedError:
                return None
            self._choosers[rows, lists, turn] = found
        return found

    def _made(
        self,
        inputs: PackedInputs,
        shape: StepShape,
        pools: TorchPools,
        programs: Programs,
        deferred: DeferredStates | None,
        chooser: TorchSampling | None = None,
        chains: bool = False,
    ) -> PackedStep:
        program = programs(self.phase_of(inputs))
        return PackedStep(self._device, program, pools, shape, deferred, chooser, chains)

    def phase_of(self, inputs: PackedInputs) -> Phase:
        """The phase whose program computes a step."""
        if isinstance(inputs, DraftInputs):
            return Phase.DRAFT
        rows = len(inputs.seq_lens)
        return (
            self._decoding(padded_rows(rows, self._limits.max_rows)) if len(inputs.input_ids) == rows else Phase.PREFILL
        )

    def _decoding(self, rows: int) -> Phase:
        """The phase of decode steps of so many rows, padding included."""
        return Phase.DECODE if self.ring_rows is None or rows < self.ring_rows else Phase.RING


def _drafts(inputs: PackedInputs) -> int:
    """One less than the slots of a row, 0 in a step without draft tokens."""
    return inputs.state_indices.shape[1] - 1 if isinstance(inputs, DraftInputs) else 0
