"""Steps of several tokens a row, padded to widths that come again: on a GPU recorded in CUDA graphs and replayed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch

from hybridge.artifact.names import CONTEXT_LENGTHS, INPUT_IDS, PAST_LENGTHS
from hybridge.runtime.engines.dense import StepInputs
from hybridge.runtime.engines.torch.cache_blocks import CacheBlocks
from hybridge.runtime.engines.torch.device import TorchDevice
from hybridge.runtime.engines.torch.graph import LENGTHS, RESULT
from hybridge.runtime.engines.torch.lengths import StepLengths
from hybridge.runtime.engines.torch.program import Program
from hybridge.runtime.engines.torch.recording import RepeatedWork
from hybridge.runtime.engines.torch.state_memory import StateMemory
from hybridge.runtime.engines.torch.step_memory import memory_for

# Shapes of one state memory that stay prepared, those that came last.
MOST_PROMPTS = 8
# Narrower steps run kernels for few rows, and check draft tokens after any number of cached ones.
_LEAST_TOKENS = 17
# Of all rows: beyond, a GPU takes longer than its host, and a recorded step would hold much memory.
_MOST_TOKENS = 8192


@dataclass(frozen=True)
class PromptShape:
    """tokens: the width of a step, padding included. past: cached tokens of each row, the same for all.

    logits: whether the step gives any.
    """

    tokens: int
    past: int
    logits: bool = True

    @classmethod
    def of(cls, inputs: StepInputs, max_seq: int, logits: bool = True) -> PromptShape | None:
        """The padded shape of a step; None where it has few tokens or very many, where a row has none, and where rows
        do not have equally many cached ones.

        Padding is at most a sixteenth of the tokens, or 15; it ends at ``max_seq`` positions.
        """
        (rows, tokens), past = inputs.input_ids.shape, int(inputs.past_lengths[0])
        room = max_seq - past
        if not _LEAST_TOKENS <= tokens <= min(room, _MOST_TOKENS // rows):
            return None
        if inputs.context_lengths.min() < 1 or (inputs.past_lengths != past).any():
            return None
        step = max(16, 1 << (tokens.bit_length() - 5))
        return cls(min(-(-tokens // step) * step, room), past, logits)


class PromptStep:
    """Steps of one shape over one state memory; how many tokens each row has is in device memory.

    The first run is a step like any other, the second is recorded, and from then on a step is one launch.
    """

    def __init__(
        self,
        device: TorchDevice,
        program: Program,
        memory: StateMemory,
        shape: PromptShape,
        finish: Callable[[Mapping[str, torch.Tensor]], torch.Tensor | None],
    ) -> None:
        """``finish`` takes over what the program returns: it advances the states and gives the logits, if any."""
        self._device, self._program, self._finish = device, program, finish
        rows, tokens = memory.batch, shape.tokens
        words = 2 * rows * tokens  # token ids are int64
        self._host = device.pinned(words + 2 * rows, dtype=torch.int32)
        self._there = device.zeros(words + 2 * rows, dtype=torch.int32) if device.is_gpu else self._host
        here = self._host.numpy()
        self._ids, self._context = here[:words].view(np.int64).reshape(rows, tokens), here[words : words + rows]
        here[words + rows :] = shape.past
        self._rows, self._tokens = rows, tokens
        past = (shape.past,) * rows
        blocks = CacheBlocks.of_prompts(device, tokens, past, memory.max_seq)
        self._feeds = {
            INPUT_IDS: self._there[:words].view(torch.int64).view(rows, tokens),
            CONTEXT_LENGTHS: self._there[words : words + rows],
            PAST_LENGTHS: self._there[words + rows :],
            LENGTHS: StepLengths(tokens, (tokens,) * rows, past, memory.max_seq, blocks, is_padded=True),
            RESULT: None,
            **memory.tensors,
        }
        # Of the logits: host memory, and the same as the GPU writes to it.
        self._logits: tuple[torch.Tensor, torch.Tensor] | None = None
        self._done: torch.cuda.Event | None = None
        self.repeated = RepeatedWork(device, self._work)

    def run(self, inputs: StepInputs) -> np.ndarray:
        """One step of at most this width that gives logits: [batch, vocab] float32, valid until the next run.

        EngineError when the GPU refuses or fails it.
        """
        self.start(inputs)
        self._device.synchronize()
        assert self._logits is not None
        return self._logits[0].numpy()

    def start(self, inputs: StepInputs) -> torch.cuda.Event | None:
        """Enqueue one step; what is done when the GPU has finished it, None on a CPU."""
        if self._done is not None:
            self._device.wait_for(self._done)  # until then the GPU reads host memory
        ids = inputs.input_ids
        self._ids[:, : ids.shape[1]], self._ids[:, ids.shape[1] :] = ids, 0
        self._context[:] = inputs.context_lengths
        with self._device.active(), memory_for(self._rows, self._tokens):
            self.repeated.run()
        self._done = self._device.mark()
        return self._done

    def _work(self) -> None:
        if self._there is not self._host:
            self._there.copy_(self._host, non_blocking=True)
        logits = self._finish(self._program.run(self._feeds))
        if logits is None:
            return
        if self._logits is None:
            self._logits = self._device.mapped(*logits.shape, dtype=torch.float32)
        self._logits[1].copy_(logits, non_blocking=True)
