"""The peer and reference: transformers, on the CPU or a GPU."""

from __future__ import annotations

import gc
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure import seconds


class Peer:
    """A checkpoint in transformers, configured for its best speed.

    It has its own cache, generates greedily without stopping early, and returns the logits of the last token only where
    no others are needed. What is timed runs the fast kernels that transformers finds installed; reference values do
    not. dt is clamped at the checkpoint's time_step_limit, as in the artifact.
    """

    def __init__(
        self, checkpoint: Path, threads: int | None = None, dtype: str = "float32", device: str = "cpu"
    ) -> None:
        import torch
        import transformers

        transformers.utils.logging.set_verbosity_error()
        transformers.utils.logging.disable_progress_bar()
        if threads is not None:
            torch.set_num_threads(threads)
        self._torch, self._device = torch, torch.device(device)
        model: Any = transformers.AutoModelForCausalLM.from_pretrained(checkpoint, dtype=getattr(torch, dtype))
        self._model = model.to(self._device).eval()
        limit = tuple(_bound(value) for value in getattr(model.config, "time_step_limit", (0.0, math.inf)))
        for module in model.modules():
            if hasattr(module, "time_step_limit"):
                module.time_step_limit = limit
        model.generation_config = transformers.GenerationConfig(do_sample=False, use_cache=True, pad_token_id=0)

    @property
    def vocab_size(self) -> int:
        """Tokens that the model knows."""
        return int(self._model.config.vocab_size)

    def accelerated(self, engine: str, **options: Any) -> AbstractContextManager[Any]:
        """``hybridge.accelerate`` of the model, undone when left. options: its keyword arguments."""
        import hybridge

        return hybridge.accelerate(self._model, engine, **options)

    def close(self) -> None:
        """Free the model's memory."""
        self._model = None
        gc.collect()
        self._torch.cuda.empty_cache()

    def logits(self, tokens: np.ndarray) -> np.ndarray:
        """Logits [tokens, vocab] float32 after each of ``tokens`` [tokens] int64, by transformers' own functions."""
        with self._torch.inference_mode(), _own_functions(self._model):
            found = self._model(self._ids(tokens[None]), use_cache=False).logits[0]
        return np.asarray(found.float().cpu().numpy())

    def generate(self, prompt: np.ndarray, new_tokens: int) -> list[int]:
        """``new_tokens`` greedy tokens after ``prompt`` [tokens] int64."""
        output = self._generate(self._ids(prompt[None]), new_tokens)
        return [int(token) for token in output[0, len(prompt) :]]

    def prefill_seconds(self, prompts: np.ndarray) -> float:
        """Seconds of filling a cache with ``prompts`` [batch, tokens], to the logits of the last token."""
        ids = self._ids(prompts)
        return self._timed(lambda: self._model(ids, use_cache=True, logits_to_keep=1))

    def generate_seconds(self, prompts: np.ndarray, new_tokens: int) -> float:
        """Seconds of ``new_tokens`` greedy tokens after ``prompts`` [batch, tokens]."""
        ids = self._ids(prompts)
        return self._timed(lambda: self._generate(ids, new_tokens))

    def step_seconds(self, prompts: np.ndarray, steps: int) -> float:
        """Seconds of one of ``steps`` greedy steps after ``prompts`` [batch, tokens]."""
        return (self.generate_seconds(prompts, steps + 1) - self.generate_seconds(prompts, 1)) / steps

    def _generate(self, ids: Any, new_tokens: int) -> Any:
        with self._torch.inference_mode():
            return self._model.generate(ids, attention_mask=self._torch.ones_like(ids), max_new_tokens=new_tokens)

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
def _own_functions(model: Any) -> Iterator[None]:
    """No kernels of other packages: fla solves float32 systems in TF32, and compiles each kernel many times first.

    transformers replaces functions of the model's module, which keep the original as ``__wrapped__``.
    """
    module = vars(sys.modules[type(model).__module__])
    replaced = {name: value for name, value in module.items() if hasattr(value, "__wrapped__")}
    module.update({name: value.__wrapped__ for name, value in replaced.items()})
    try:
        yield
    finally:
        module.update(replaced)


def _bound(value: Any) -> float:
    """A limit as transformers reads it; infinity may be written as an object."""
    return math.inf if value is None or isinstance(value, dict) else float(value)
