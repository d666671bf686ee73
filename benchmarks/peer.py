"""The peer and reference: transformers in float32 on the CPU."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np


class Peer:
    """A checkpoint in transformers, set up as well as we know how.

    Float32, ``threads`` threads, the model's own cache, greedy generation without stopping early, logits of the last
    token only where no others are asked for. dt is clamped at the checkpoint's time_step_limit, as in the artifact.
    """

    def __init__(self, checkpoint: Path, threads: int) -> None:
        import torch
        import transformers

        transformers.utils.logging.set_verbosity_error()
        transformers.utils.logging.disable_progress_bar()
        torch.set_num_threads(threads)
        self._torch = torch
        model = transformers.AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()
        self._model: Any = model
        self.vocab_size = int(model.config.vocab_size)
        limit = tuple(_bound(value) for value in getattr(model.config, "time_step_limit", (0.0, math.inf)))
        for module in model.modules():
            if hasattr(module, "time_step_limit"):
                module.time_step_limit = limit
        config = transformers.GenerationConfig(do_sample=False, use_cache=True, pad_token_id=0)
        config.eos_token_id = None
        model.generation_config = config

    def generate(self, prompt: np.ndarray, new_tokens: int) -> list[int]:
        """``new_tokens`` greedy tokens after ``prompt`` [tokens] int64."""
        ids = self._torch.from_numpy(prompt)[None]
        mask = self._torch.ones_like(ids)
        with self._torch.inference_mode():
            output = self._model.generate(ids, attention_mask=mask, max_new_tokens=new_tokens)
        return [int(token) for token in output[0, len(prompt) :]]

    def prefill(self, prompt: np.ndarray) -> np.ndarray:
        """Fill a cache with ``prompt`` [tokens] int64; logits [vocab] after its last token."""
        return self._logits(prompt, use_cache=True, logits_to_keep=1)[0]

    def logits(self, tokens: np.ndarray) -> np.ndarray:
        """Logits [tokens, vocab] after each of ``tokens`` [tokens] int64."""
        return self._logits(tokens, use_cache=False)

    def _logits(self, tokens: np.ndarray, **arguments: Any) -> np.ndarray:
        with self._torch.inference_mode():
            return self._model(self._torch.from_numpy(tokens)[None], **arguments).logits[0].numpy()


def _bound(value: Any) -> float:
    """A limit as transformers reads it; infinity may be written as an object."""
    return math.inf if value is None or isinstance(value, dict) else float(value)
