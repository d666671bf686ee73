"""The torch engine for paged artifacts: packed steps on a CUDA GPU with this project's kernels, or on the CPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch

from artifact.errors import EngineError
from artifact.names import LOGITS, QUERY_START_LOC, SEQ_LENS
from runtime.engines.packed_check import check_packed
from runtime.engines.paged import PackedInputs, PoolSizes
from runtime.engines.pooled import PooledEngine
from runtime.engines.torch.device import TorchDevice
from runtime.engines.torch.fusion import Phase
from runtime.engines.torch.model import TorchModel
from runtime.engines.torch.packed_buffers import PackedBuffers, StepSize
from runtime.engines.torch.paged_candidates import PagedCandidateStep, candidate_size
from runtime.engines.torch.paged_decode import PagedDecodeStep, padded_blocks, padded_rows
from runtime.engines.torch.paged_pools import TorchPools
from runtime.engines.torch.paged_result import TorchStepResult, best_of
from runtime.engines.torch.step_memory import StepMemory
from runtime.engines.torch.step_rows import StepRows

# Bounds of the tokens of a row are powers of two from here on.
_LEAST_LONGEST = 64


class TorchPagedEngine(PooledEngine[TorchPools]):
    """Runs a paged artifact's graph in the types that it declares, with its pools where they are.

    On a GPU a step in which every row has one token, or at most one and its candidates, is one launch of a CUDA graph.
    Other steps are padded to sizes that come again, since every new size has its kernel calls planned once.
    """

    name: ClassVar[str] = "torch"

    def __init__(self, folder: str | Path, device: str | None = None, threads: int | None = None) -> None:
        """Load the artifact in ``folder``; arguments and errors are those of ``TorchEngine``."""
        super().__init__(folder)
        if threads is not None:
            torch.set_num_threads(threads)
        self._device = TorchDevice(device)
        self._step_tokens = self._device.step_tokens
        self._specs = self.config.bindings.states
        self._model = TorchModel(self._folder, self.config, self._device)
        self._decode_steps: dict[tuple[int, int], PagedDecodeStep] = {}
        self._candidate_steps: dict[StepSize, PagedCandidateStep] = {}
        self._memory = StepMemory(self._device)
        # Made now, so that an artifact that this engine cannot run is refused before the first token.
        self._model.program(Phase.PREFILL)
        self._model.program(Phase.DECODE)
        if self.config.speculative_tokens:
            self._model.program(Phase.CANDIDATES)

    @property
    def shows_values(self) -> bool:
        return True

    @property
    def device(self) -> TorchDevice:
        """Where it computes."""
        return self._device

    @property
    def decode_steps(self) -> Mapping[tuple[int, int], PagedDecodeStep]:
        """The steps that have been prepared on a GPU, by rows and blocks."""
        return self._decode_steps

    @property
    def candidate_steps(self) -> Mapping[StepSize, PagedCandidateStep]:
        """The steps of rows with candidates that have been prepared on a GPU, by size."""
        return self._candidate_steps

    def allocate_pools(self, sizes: PoolSizes) -> None:
        self._device.synchronize()
        self._forget_steps()
        self._pools = TorchPools(self._specs, sizes, self._device)

    def step(self, inputs: PackedInputs) -> np.ndarray:
        return self.launch(inputs).all_logits()

    def launch(self, inputs: PackedInputs) -> TorchStepResult:
        self._check(inputs)
        # The memory of the step before is used again.
        self._device.synchronize()
        tokens, rows = len(inputs.input_ids), len(inputs.seq_lens)
        if self._device.is_gpu and self._has_few_tokens(inputs):
            return self._candidate_step(inputs).launch(inputs)
        if tokens > rows or not self._device.is_gpu or inputs.num_accepted_tokens is not None:
            return self._run(inputs, ())[0]
        size = self.pools.sizes.block_size
        key = padded_rows(rows, self.limits.max_rows), padded_blocks(inputs.block_table.shape[1], size)
        step = self._decode_steps.get(key)
        if step is None:
            program = self._model.program(Phase.DECODE)
            step = self._decode_steps[key] = PagedDecodeStep(self._device, program, self.pools, *key)
        return step.launch(inputs)

    def step_values(self, inputs: PackedInputs, values: Sequence[str]) -> dict[str, np.ndarray]:
        self._check(inputs)
        result, found = self._run(inputs, values)
        with self._device.active():
            inner = {name: found[name][: len(inputs.input_ids)].float().cpu().numpy() for name in values}
        return {LOGITS: result.all_logits(), **inner}

    def read_pool(self, name: str) -> np.ndarray:
        return self.pools.read(name)

    def fill_pools(self, value: float) -> None:
        self.pools.fill(value)

    def free_memory(self) -> int | None:
        return self._memory.free()

    def held_memory(self) -> Mapping[str, int]:
        return {**self._model.weights.held_memory(), **self._memory.held()}

    def close(self) -> None:
        self._device.synchronize()
        self._forget_steps()
        self._model.close()

    def _forget_steps(self) -> None:
        """Give up the pools and what was recorded over them."""
        self._decode_steps.clear()
        self._candidate_steps.clear()
        self._pools = None

    def _has_few_tokens(self, inputs: PackedInputs) -> bool:
        """Whether no row of the step has more tokens than a sequence may have with its candidates."""
        if inputs.num_accepted_tokens is None:
            return False
        return bool(np.diff(inputs.query_start_loc).max() <= inputs.state_indices.shape[1])

    def _candidate_step(self, inputs: PackedInputs) -> PagedCandidateStep:
        candidates = self.config.speculative_tokens
        size = candidate_size(inputs, candidates, self.limits.max_rows, self.pools.sizes.block_size)
        step = self._candidate_steps.get(size)
        if step is None:
            program = self._model.program(Phase.CANDIDATES)
            step = PagedCandidateStep(self._device, program, self.pools, size, candidates)
            self._candidate_steps[size] = step
        return step

    def _run(self, inputs: PackedInputs, values: Sequence[str]) -> tuple[TorchStepResult, Mapping[str, torch.Tensor]]:
        """A step that is not recorded, and what its program gives."""
        pools = self.pools
        candidates = 0 if inputs.num_accepted_tokens is None else self.config.speculative_tokens
        program = self._model.program(_phase(inputs), values)
        with self._device.active(), self._memory.measured(len(inputs.input_ids)):
            try:
                size, split = self._padding(inputs)
                buffers = PackedBuffers(self._device, size, candidates)
                buffers.fill(inputs, split=split)
                buffers.upload()
                step_rows = _step_rows(buffers, sum(split), 1 + candidates)
                found = program.run({**buffers.tensors, **pools.tensors, QUERY_START_LOC: step_rows})
                best = best_of(found[LOGITS])
                host = self._device.pinned(*best.shape, dtype=best.dtype)
                host.copy_(best, non_blocking=True)
            except torch.OutOfMemoryError as error:
                raise EngineError(
                    f"expected memory for a step of {len(inputs.input_ids)} tokens, found too little: lower max_tokens "
                    "or memory_utilization"
                ) from error
        result = TorchStepResult(self._device, host, found[LOGITS], slice(0, len(inputs.logits_indices)))
        return result, found

    def _padding(self, inputs: PackedInputs) -> tuple[StepSize, tuple[int, int]]:
        """The size that the step is padded to, and how many rows come between those of one token and the others.

        On a CPU the step's own size, and none.
        """
        rows, blocks = inputs.block_table.shape
        tokens, logits = len(inputs.input_ids), len(inputs.logits_indices)
        longer = np.flatnonzero(np.diff(inputs.query_start_loc) != 1)
        singles = int(longer[0]) if longer.size else rows
        if inputs.num_accepted_tokens is not None:
            singles = 0  # one call of a recurrent operator is for all rows
        if not self._device.is_gpu:
            return StepSize(tokens, rows, blocks, logits), (singles, 0)
        columns, split = padded_blocks(blocks, self.pools.sizes.block_size), _multiple(singles, 8)
        others = 0 if singles == rows else 1 << (rows - singles - 1).bit_length()
        size = StepSize(padded_tokens(tokens), split + others, columns, _multiple(max(1, logits), 8))
        return size, (singles, split - singles)

    def _check(self, inputs: PackedInputs) -> None:
        check_packed(inputs, self.limits, self.config.speculative_tokens)
        ids = inputs.input_ids
        if ids.min() < 0 or ids.max() >= self.config.vocab_size:
            raise EngineError(
                f"expected token ids from 0 to {self.config.vocab_size - 1}, found {ids.min()} to {ids.max()}"
            )


def padded_tokens(tokens: int) -> int:
    """Tokens that a step of ``tokens`` is padded to: by at most an eighth, or 16."""
    step = max(16, 1 << max(0, tokens.bit_length() - 4))
    return _multiple(tokens, step)


def _multiple(count: int, step: int) -> int:
    return -(-count // step) * step


def _phase(inputs: PackedInputs) -> Phase:
    if inputs.num_accepted_tokens is not None:
        return Phase.CANDIDATES
    return Phase.DECODE if len(inputs.input_ids) == len(inputs.seq_lens) else Phase.PREFILL


def _step_rows(buffers: PackedBuffers, split: int, few: int) -> StepRows:
    """``few``: tokens that a row may have without being a part of a prompt."""
    counts = np.diff(buffers.arrays[QUERY_START_LOC]).tolist()
    lengths = buffers.arrays[SEQ_LENS].tolist()
    longest = max(few, *counts)
    if longest > few:
        longest = max(_LEAST_LONGEST, 1 << (longest - 1).bit_length())
    return StepRows(buffers.tensors[QUERY_START_LOC], tuple(counts), tuple(lengths), split, longest)
