"""The torch engine: one artifact on a CUDA GPU with this project's kernels, or on the CPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from hybridge.artifact.errors import EngineError
from hybridge.artifact.names import CONTEXT_LENGTHS, INPUT_IDS, PAST_LENGTHS
from hybridge.runtime.engines.capacity import capacity_for
from hybridge.runtime.engines.dense import DenseEngine, StateSet, StepInputs, read_dense_config
from hybridge.runtime.engines.step_check import check_step
from hybridge.runtime.engines.torch.cache_blocks import CacheBlocks
from hybridge.runtime.engines.torch.decode_step import DecodeStep
from hybridge.runtime.engines.torch.decoder import TorchDecoder
from hybridge.runtime.engines.torch.device import TorchDevice
from hybridge.runtime.engines.torch.fusion import Phase
from hybridge.runtime.engines.torch.graph import LENGTHS, RESULT
from hybridge.runtime.engines.torch.lengths import StepLengths
from hybridge.runtime.engines.torch.model import TorchModel
from hybridge.runtime.engines.torch.prompt_step import MOST_PROMPTS, PromptShape, PromptStep
from hybridge.runtime.engines.torch.state_memory import StatePool
from hybridge.runtime.engines.torch.states import TorchStateSet
from hybridge.runtime.engines.torch.step_memory import memory_for

# Axes of logits of one token a row: batch, vocabulary.
_ROW_OF_LOGITS = 2


class TorchEngine(DenseEngine):
    """Runs an artifact's graph in the types that it declares, with its states where they are."""

    name: ClassVar[str] = "torch"

    def __init__(self, folder: str | Path, device: str | None = None) -> None:
        """Load the artifact in ``folder``.

        device: "cuda" or "cpu"; None is the GPU where torch can use one.
        ArtifactError when the folder is not a complete artifact, EngineError for a device that is not there.
        """
        self._folder = Path(folder).resolve()
        self.config = read_dense_config(Path(folder))
        self._device = TorchDevice(device)
        self._specs = self.config.bindings.states
        replaced = {spec.replaced_by for spec in self._specs}
        result = next(output for output in self.config.bindings.outputs if output.name not in replaced)
        self._result = result.name
        self._model = TorchModel(self._folder, self.config, self._device, takes_result=True)
        self._pool = StatePool(self._specs, self._device)
        self._closed = False
        self._ahead: torch.cuda.Event | None = None  # after the last step that ``feed`` has not waited for
        # Prompts are prepared by shape where their result is one row of logits for each row.
        self._prepares_prompts = self._device.is_gpu and len(result.shape) == _ROW_OF_LOGITS
        # Made now, so that an artifact that this engine cannot run is refused before the first token.
        self._model.program(Phase.PREFILL)
        self._model.program(Phase.DECODE)

    @property
    def max_step_tokens(self) -> int:
        return min(self._device.step_tokens, self.max_seq_len)

    @property
    def shows_values(self) -> bool:
        return True

    @property
    def device(self) -> TorchDevice:
        """The device."""
        return self._device

    @property
    def model(self) -> TorchModel:
        """Its programs and weights."""
        return self._model

    def allocate_states(self, batch: int, max_seq: int) -> TorchStateSet:
        self._check_open()
        self.check_batch(batch)
        return TorchStateSet(self._specs, self._device, self._pool, batch, max_seq, self.max_seq_len)

    def step(self, inputs: StepInputs, states: StateSet) -> np.ndarray:
        own = self._checked(inputs, states)
        if inputs.input_ids.shape[1] > 1:
            prompt = self._prompt_step(inputs, own) if self._prepares_prompts else None
            return self._run(inputs, own, ())[self._result] if prompt is None else self._run_prompt(prompt, inputs)
        longest = int((inputs.context_lengths + inputs.past_lengths).max())
        bound = self._bound(own, max(1, longest))
        context, past = inputs.context_lengths.tolist(), inputs.past_lengths.tolist()
        bound.buffers.fill(inputs.input_ids[:, 0].tolist(), context, past)
        return bound.run()

    def feed(self, inputs: StepInputs, states: StateSet) -> None:
        own = self._checked(inputs, states)
        prompt = self._prompt_step(inputs, own, logits=False) if self._prepares_prompts else None
        if prompt is None:
            super().feed(inputs, states)
            return
        # The GPU has the next step when it ends one, and no more: a prompt may be given up.
        before, self._ahead = self._ahead, prompt.start(inputs)
        self._note_direct(prompt)
        if before is not None:
            self._device.wait_for(before)

    def decoder(self, rows: Sequence[int], states: StateSet) -> TorchDecoder:
        own = self._own(states)
        return TorchDecoder(rows, own, self.config.vocab_size, lambda tokens: self._bound(own, tokens))

    def step_values(self, inputs: StepInputs, states: StateSet, values: Sequence[str]) -> dict[str, np.ndarray]:
        return self._run(inputs, self._checked(inputs, states), values)

    def close(self) -> None:
        self._closed = True
        self._pool.close()
        self._model.close()

    def _bound(self, states: TorchStateSet, tokens: int) -> DecodeStep:
        """The decode step for rows that hold at most ``tokens`` after it."""
        self._check_open()
        memory = states.memory
        bucket = capacity_for(tokens, memory.max_seq) if self.config.kv_layers else memory.max_seq
        bound: DecodeStep | None = memory.bound.get(bucket)
        if bound is None:
            # Holds the tensors alone, as memory that held what holds it would outlive its last user.
            program, tensors = self._model.program(Phase.DECODE), memory.tensors
            bound = memory.bound[bucket] = DecodeStep(
                self._device, program, memory, bucket, lambda found: self._taken_over(found, tensors)
            )
        return bound

    def _prompt_step(self, inputs: StepInputs, states: TorchStateSet, logits: bool = True) -> PromptStep | None:
        """The prepared step for prompts of this shape; None where there are none of it."""
        memory = states.memory
        shape = PromptShape.of(inputs, memory.max_seq, logits)
        if shape is None:
            return None
        step: PromptStep | None = memory.prompts.pop(shape, None)
        if step is None:
            program, tensors = self._model.program(Phase.PREFILL if logits else Phase.FEED), memory.tensors
            finish = self._taken_over if logits else self._advance
            step = PromptStep(self._device, program, memory, shape, lambda found: finish(found, tensors))
        memory.prompts[shape] = step
        if len(memory.prompts) > MOST_PROMPTS:
            memory.prompts.popitem(last=False)
        return step

    def _run_prompt(self, step: PromptStep, inputs: StepInputs) -> np.ndarray:
        logits = step.run(inputs)
        self._note_direct(step)
        return logits

    def _note_direct(self, step: PromptStep) -> None:
        if step.repeated.direct:
            # Some operator of this model asks the GPU for values: none of its prompts can be recorded.
            self._prepares_prompts = not self._device.is_gpu

    def _run(self, inputs: StepInputs, states: TorchStateSet, values: Sequence[str]) -> dict[str, np.ndarray]:
        """A step that is not recorded: the logits and inner ``values`` by name."""
        tokens = inputs.input_ids.shape[1]
        program = self._model.program(Phase.DECODE if tokens == 1 else Phase.PREFILL, values)
        context, past = inputs.context_lengths.tolist(), inputs.past_lengths.tolist()
        with self._device.active(), memory_for(states.batch, tokens):
            found = program.run({**self._feeds(inputs, context, past, states.max_seq), **states.memory.tensors})
            logits = self._taken_over(found, states.memory.tensors)
            return {
                self._result: logits.cpu().numpy(),
                **{name: found[name].float().cpu().numpy() for name in values},
            }

    def _feeds(self, inputs: StepInputs, context: list[int], past: list[int], room: int) -> dict[str, Any]:
        device, tokens = self._device.torch, inputs.input_ids.shape[1]
        blocks = CacheBlocks.of_prompts(self._device, tokens, past, room) if tokens > 1 else None
        return {
            INPUT_IDS: torch.tensor(inputs.input_ids, dtype=torch.int64, device=device),
            CONTEXT_LENGTHS: torch.tensor(context, dtype=torch.int32, device=device),
            PAST_LENGTHS: torch.tensor(past, dtype=torch.int32, device=device),
            LENGTHS: StepLengths(tokens, tuple(context), tuple(past), room, blocks),
            RESULT: None,
        }

    def _taken_over(self, found: Mapping[str, torch.Tensor], states: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Advance the states; the logits in float32."""
        self._advance(found, states)
        return found[self._result].float()

    def _advance(self, found: Mapping[str, torch.Tensor], states: Mapping[str, torch.Tensor]) -> None:
        """Take over the states that the program did not change where they are."""
        for spec in self._specs:
            tensor, present = states[spec.name], found[str(spec.replaced_by)]
            if present is not tensor:
                tensor.copy_(present)

    def _checked(self, inputs: StepInputs, states: StateSet) -> TorchStateSet:
        own, ids = self._own(states), inputs.input_ids
        check_step(inputs, own.batch, self.max_step_tokens, own.max_seq)
        if ids.min() < 0 or ids.max() >= self.config.vocab_size:
            raise EngineError(
                f"expected token ids from 0 to {self.config.vocab_size - 1}, found {ids.min()} to {ids.max()}"
            )
        return own

    def _own(self, states: StateSet) -> TorchStateSet:
        self._check_open()
        if not isinstance(states, TorchStateSet) or states.device is not self._device:
            raise EngineError(f"expected states allocated by this engine, found {type(states).__name__} of another")
        return states

    def _check_open(self) -> None:
        if self._closed:
            raise EngineError("expected an open engine, found one that was closed: create it again")
