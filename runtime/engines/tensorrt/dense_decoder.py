"""Decoding on a dense engine with tokens sampled on the GPU, after the step and in the same captured graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hybridge.runtime.engines.dense import DenseEngine, StepDecoder, StepInputs
from hybridge.runtime.engines.step_result import StepResult
from hybridge.runtime.engines.tensorrt.pending_step import PendingStep
from hybridge.runtime.engines.tensorrt.states import DeviceStateSet
from hybridge.runtime.engines.tensorrt.step_sampling import StepSampler
from hybridge.runtime.sampling import NO_SAMPLING, DrawError, SampledToken, TokenSampling


@dataclass(frozen=True, eq=False)
class SampledStep:
    """The output of a decode step on the device, by batch row. logits: copies all rows [batch, vocab] to the host."""

    sampler: StepSampler
    logits: Callable[[], np.ndarray]


# Launches a step that samples on the GPU, by batch row; None if that is not possible.
Submit = Callable[[StepInputs, DeviceStateSet, Mapping[int, TokenSampling]], PendingStep[SampledStep] | None]


class DeviceDecoder(StepDecoder):
    """Copies the logits of a step to the host only on request."""

    def __init__(self, engine: DenseEngine, rows: Sequence[int], states: DeviceStateSet, submit: Submit) -> None:
        super().__init__(engine, rows, states)
        self._submit, self._device_states = submit, states

    def launch(
        self,
        tokens: Sequence[int],
        past_lengths: Sequence[int],
        samplings: Mapping[int, TokenSampling] = NO_SAMPLING,
    ) -> StepResult:
        inputs = self._filled(tokens, past_lengths)
        by_row = {self._rows[index]: how for index, how in samplings.items()}
        pending = self._submit(inputs, self._device_states, by_row)
        if pending is None:
            return super().launch(tokens, past_lengths, samplings)
        return DecodeResult(pending, self._rows)


class DecodeResult(StepResult):
    """The result of a decode step: ``rows`` of the batch, in order."""

    def __init__(self, pending: PendingStep[SampledStep], rows: Sequence[int]) -> None:
        self._pending, self._rows = pending, list(rows)

    @property
    def is_ready(self) -> bool:
        return self._pending.is_reached

    def best_tokens(self) -> list[int | None]:
        found: list[int] = self._pending.read().sampler.best[self._rows].tolist()
        return [token if token >= 0 else None for token in found]

    def sampled(self, samplings: Mapping[int, TokenSampling]) -> dict[int, SampledToken | DrawError]:
        sampler = self._pending.read().sampler
        chosen = sampler.sampled({self._rows[index]: how for index, how in samplings.items()})
        found: dict[int, SampledToken | DrawError] = {}
        found |= {index: chosen[self._rows[index]] for index in samplings if self._rows[index] in chosen}
        # The host samples the other rows and reports errors.
        return {**found, **super().sampled({index: how for index, how in samplings.items() if index not in found})}

    def logits(self, index: int) -> np.ndarray:
        row: np.ndarray = self.rows([index])[0]
        return row

    def rows(self, indices: Sequence[int]) -> np.ndarray:
        return self._pending.read().logits()[[self._rows[index] for index in indices]]
