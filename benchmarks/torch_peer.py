"""The peer and reference on a device of torch: transformers, in bfloat16 for speed and in float32 for values."""

from __future__ import annotations

import gc
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure import seconds


class TorchPeer:
    """A checkpoint in transformers. What is timed runs the fast kernels that it finds installed, values do not.

    dt is clamped at the limits that the artifact has. ``close`` frees the memory.
    """

    def __init__(self, checkpoint: Path, dtype: str, device: str) -> None:
        import torch
        import transformers

        transformers.utils.logging.set_verbosity_error()
        transformers.utils.logging.disable_progress_bar()
        self._torch, self._device = torch, torch.device(device)
        loaded: Any = transformers.AutoModelForCausalLM.from_pretrained(checkpoint, dtype=getattr(torch, dtype))
        self._model = loaded.to(self._device).eval()
        self._model.generation_config.eos_token_id = None
        for module in self._model.modules():
            if hasattr(module, "time_step_limit"):
                module.time_step_limit = (0.0, math.inf)

    def logits(self, tokens: np.ndarray) -> np.ndarray:
        """Logits [tokens, vocab] float32 after each of ``tokens`` [tokens] int64, by transformers' own functions."""
        with self._torch.inference_mode(), _written_in_torch(self._model):
            found = self._model(self._ids(tokens[None]), use_cache=False).logits[0]
        return np.asarray(found.float().cpu().numpy())

    def prefill_seconds(self, tokens: np.ndarray) -> float:
        """Seconds of filling a cache with ``tokens`` [batch, tokens], to the logits of the last token."""
        ids = self._ids(tokens)
        return self._timed(lambda: self._model(ids, use_cache=True, logits_to_keep=1))

    def decode_seconds(self, tokens: np.ndarray, steps: int) -> float:
        """Seconds of one of ``steps`` greedy steps after the prompt ``tokens`` [batch, tokens]."""
        return (self._generate(tokens, steps + 1) - self._generate(tokens, 1)) / steps

    def close(self) -> None:
        """Free the model's memory."""
        self._model = None
        gc.collect()
        self._torch.cuda.empty_cache()

    def _generate(self, tokens: np.ndarray, count: int) -> float:
        ids = self._ids(tokens)
        arguments = {"attention_mask": self._torch.ones_like(ids), "do_sample": False, "pad_token_id": 0}
        return self._timed(lambda: self._model.generate(ids, max_new_tokens=count, use_cache=True, **arguments))

    def _timed(self, work: Callable[[], object]) -> float:
        def finished() -> None:
            work()
            self._wait()

        with self._torch.inference_mode():
            self._wait()
            return seconds(finished)

    def _wait(self) -> None:
        if self._device.type == "cuda":
            self._torch.cuda.synchronize()

    def _ids(self, tokens: np.ndarray) -> Any:
        return self._torch.tensor(tokens, dtype=self._torch.int64, device=self._device)


@contextmanager
def _written_in_torch(model: Any) -> Iterator[None]:
    """No kernels of other packages: fla solves in TF32 what is float32, and compiles each kernel many times first.

    transformers puts them in the place of functions of the model's module, which keep the original as ``__wrapped__``.
    """
    module = vars(sys.modules[type(model).__module__])
    replaced = {name: value for name, value in module.items() if hasattr(value, "__wrapped__")}
    module.update({name: value.__wrapped__ for name, value in replaced.items()})
    try:
        yield
    finally:
        module.update(replaced)
