"""Perplexity of a causal language model on a held-out text."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class HeldOut:
    """Mean natural-log loss per predicted token, its exponential, and the number of tokens."""

    loss: float
    perplexity: float
    tokens: int


def windows_from_text(tokenizer: Any, text: str, window: int) -> np.ndarray:
    """int64 [rows, window + 1]: consecutive windows of the text, each after a BOS of its own.

    The text's last tokens that do not fill a window are left out, so that every row is alike.
    """
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    rows = len(ids) // window
    body = np.asarray(ids[: rows * window], dtype=np.int64).reshape(rows, window)
    return np.concatenate([np.full((rows, 1), tokenizer.bos_token_id, dtype=np.int64), body], axis=1)


def held_out_loss(model: Any, windows: np.ndarray, rows_per_call: int = 4) -> HeldOut:
    """Every token after the BOS of each window is predicted once, in the model's own type."""
    import torch

    if windows.shape[0] == 0:
        raise ValueError("expected at least one full window of held-out text, found none")
    was_training = model.training
    model.eval()
    total = 0.0
    with torch.no_grad():
        for start in range(0, windows.shape[0], rows_per_call):
            rows = torch.from_numpy(windows[start : start + rows_per_call]).to(model.device)
            logits = model(input_ids=rows[:, :-1], use_cache=False).logits.float()
            losses = torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten(), reduction="sum")
            total += float(losses)
    model.train(was_training)
    tokens = windows.shape[0] * (windows.shape[1] - 1)
    return HeldOut(total / tokens, math.exp(total / tokens), tokens)
