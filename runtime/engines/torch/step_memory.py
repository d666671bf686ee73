"""GPU memory of steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch

from hybridge.artifact.errors import EngineError
from hybridge.runtime.engines.torch.device import TorchDevice


@contextmanager
def memory_for(rows: int, tokens: int) -> Iterator[None]:
    """A context for a step of ``rows`` rows of ``tokens`` tokens; EngineError when memory is too small."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise EngineError(
            f"expected memory for a step of {rows} rows of {tokens} tokens, found too little: use a smaller batch, or "
            "feed prompts in shorter chunks"
        ) from error


class StepMemory:
    """Measures the memory of the largest step so far; None on a CPU."""

    def __init__(self, device: TorchDevice) -> None:
        self._device = device
        self._tokens = self._largest = 0

    @contextmanager
    def of_step(self, tokens: int) -> Iterator[None]:
        """A context for a step of ``tokens`` tokens; EngineError when there is too little memory for it."""
        measures = self._device.is_gpu and tokens > self._tokens
        before = 0
        if measures:
            self._tokens = tokens
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
        try:
            yield
        except torch.OutOfMemoryError as error:
            raise EngineError(
                f"expected memory for a step of {tokens} tokens, found too little: lower max_tokens or "
                "memory_utilization"
            ) from error
        if measures:
            self._largest = max(self._largest, torch.cuda.max_memory_allocated() - before)

    def free(self) -> int | None:
        """Unused bytes minus those of the largest step, run directly and once for recorded steps; None on a CPU."""
        if not self._device.is_gpu:
            return None
        self._device.synchronize()
        torch.cuda.empty_cache()
        return max(0, torch.cuda.mem_get_info()[0] - 2 * self._largest)

    def use(self) -> Mapping[str, int]:
        """For reports."""
        return {"largest step": self._largest, "recorded steps": self._largest} if self._largest else {}
