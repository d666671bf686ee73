"""The result of a packed step: the most likely tokens in host memory, logits where the step wrote them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from hybridge.artifact.errors import EngineError
from hybridge.runtime.engines.chained_steps import Feeding
from hybridge.runtime.engines.device_sampling import ChosenTokens
from hybridge.runtime.engines.feeding_tables import token_rows
from hybridge.runtime.engines.step_result import StepResult, lost_logits, lost_token
from hybridge.runtime.engines.torch.device import TorchDevice
from hybridge.runtime.engines.torch.row_feeding import RowFeeding
from hybridge.runtime.engines.torch.sampling_memory import TorchSampling
from hybridge.runtime.sampling import DrawError, SampledToken, TokenSampling


class TorchStepResult(StepResult):
    """The result of an enqueued step.

    best: the most likely tokens [n] in host memory, once the stream has come so far. logits: [n, vocab] on the device.
    requested: which of the n are requested. chooser: what sampled tokens in the step, or None. done: recorded after it;
    None: the stream is waited for. tokens: those that a next step can be fed, or None.
    """

    def __init__(
        self,
        device: TorchDevice,
        best: np.ndarray,
        logits: torch.Tensor,
        requested: Sequence[int] | slice,
        chooser: TorchSampling | None = None,
        done: torch.cuda.Event | None = None,
        tokens: ChosenTokens | None = None,
    ) -> None:
        self._device, self._best, self._logits, self._requested = device, best, logits, requested
        self._chooser, self._done, self._tokens = chooser, done, tokens
        self._has_logits = True

    @property
    def can_feed(self) -> bool:
        """Whether a step can be fed its tokens."""
        return self._tokens is not None

    def feed(self, rows: RowFeeding, feeding: Feeding) -> None:
        """Let ``rows`` feed its tokens, as ``feeding`` says."""
        assert self._tokens is not None
        requested, most = None if isinstance(self._requested, slice) else self._requested, len(rows.tables.sources)
        # Rows behind these are not fed.
        rows.tables.fill(self._tokens, feeding.stops[:most], token_rows(feeding, requested)[:most])

    def lose_tokens(self) -> None:
        """The host samples some of them from the logits: no step can be fed them."""
        self._tokens = None

    def lose_logits(self) -> None:
        """Another step has been launched, which overwrites them."""
        self._has_logits = False

    @property
    def device_logits(self) -> torch.Tensor:
        """Logits [n, vocab] on the device."""
        return self._logits

    def by_row(self, samplings: Mapping[int, TokenSampling]) -> dict[int, TokenSampling]:
        """``samplings``, by index of the requested logits, by row of ``device_logits``."""
        rows = self._requested
        return {index if isinstance(rows, slice) else rows[index]: how for index, how in samplings.items()}

    def choosing(self, chooser: TorchSampling, done: torch.cuda.Event | None) -> TorchStepResult:
        """This result with tokens sampled by ``chooser``, which has been enqueued after the step; done: after both."""
        parts = self._device, self._best, self._logits, self._requested
        return TorchStepResult(*parts, chooser, done, chooser.tokens)

    @property
    def is_ready(self) -> bool:
        return self._device.is_idle if self._done is None else self._done.query()

    def fed_tokens(self) -> list[int]:
        self._wait()
        found: list[int] = self._best.tolist() if self._chooser is None else self._chooser.fed_tokens
        return found[self._requested] if isinstance(self._requested, slice) else [found[r] for r in self._requested]

    def best_tokens(self) -> list[int | None]:
        self._wait()
        found: list[int] = self._best[self._requested].tolist()
        return [token if token >= 0 else None for token in found] if found and min(found) < 0 else list(found)

    def sampled(self, samplings: Mapping[int, TokenSampling]) -> dict[int, SampledToken | DrawError]:
        found: dict[int, SampledToken | DrawError] = {}
        if self._chooser is not None:
            self._wait()
            by_row = self.by_row(samplings)
            chosen = self._chooser.sampled(by_row)
            found = {index: chosen[row] for index, row in zip(samplings, by_row, strict=True) if row in chosen}
        if not self._has_logits:
            return {index: found.get(index) or lost_token(how) for index, how in samplings.items()}
        # The host samples the other rows and reports errors.
        return {**found, **super().sampled({index: samplings[index] for index in samplings if index not in found})}

    def logits(self, index: int) -> np.ndarray:
        row = index if isinstance(self._requested, slice) else self._requested[index]
        self._wait_for_logits()
        with self._device.active():
            return np.asarray(self._logits[row].cpu().numpy())

    def rows(self, indices: Sequence[int]) -> np.ndarray:
        requested = indices if isinstance(self._requested, slice) else [self._requested[index] for index in indices]
        first, end = requested[0], requested[-1] + 1
        self._wait_for_logits()
        try:
            with self._device.active():
                # Neighbours are copied from where they are, others gathered before.
                found = self._logits[first:end] if end - first == len(requested) else self._logits[list(requested)]
                host = self._device.pinned(*found.shape, dtype=found.dtype)
                host.copy_(found)
                return host.numpy()
        except RuntimeError as error:
            raise _unread(error) from error

    def all_logits(self) -> np.ndarray:
        """Logits [m, vocab] of all requested tokens."""
        self._wait_for_logits()
        try:
            with self._device.active():
                return np.asarray(self._logits.cpu().numpy()[self._requested])
        except RuntimeError as error:
            raise _unread(error) from error

    def _wait(self) -> None:
        """Wait for the step, and not for one after it."""
        if self._done is None:
            self._device.synchronize()
        else:
            self._device.wait_for(self._done)

    def _wait_for_logits(self) -> None:
        self._wait()
        if not self._has_logits:
            raise lost_logits()


def _unread(error: RuntimeError) -> EngineError:
    return EngineError(f"reading the logits: the GPU reports {' '.join(str(error).split())}")
