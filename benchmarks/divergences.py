"""KL divergences of models from the model in bf16, over the same tokens."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.agreement import random_prompt
from benchmarks.artifacts import HELD_OUT_TEXT
from hybridge.evaluation.artifact_logits import ArtifactLogits
from hybridge.evaluation.divergence import Divergence
from hybridge.evaluation.windows import first_scored, read_text, token_windows
from hybridge.runtime.text import Tokenizer


def text_windows(checkpoint: Path, size: int, most: int) -> list[np.ndarray]:
    """At most ``most`` windows of ``size`` tokens of the held-out text, int64."""
    with closing(Tokenizer.from_folder(checkpoint)) as tokenizer:
        return token_windows(tokenizer, read_text(HELD_OUT_TEXT), size, most, str(HELD_OUT_TEXT))


def random_windows(vocab_size: int, size: int, count: int) -> list[np.ndarray]:
    """``count`` windows of ``size`` random tokens, int64."""
    return [random_prompt(vocab_size, size, seed) for seed in range(count)]


def artifact_logits(folder: Path, windows: Sequence[np.ndarray], exact: bool = False) -> Iterator[np.ndarray]:
    """Logits [n, vocab] float32 after each scored token of each window, of an artifact with all logits."""
    first, size = first_scored(windows[0].size), windows[0].size
    with closing(ArtifactLogits(folder, "onnxruntime", size, exact)) as model:
        for window in windows:
            (found,) = model.logits(window, first, size)
            yield found.copy()


def divergence(
    reference: Iterable[np.ndarray], other: Iterable[np.ndarray], windows: Sequence[np.ndarray]
) -> Divergence:
    """Of ``other`` from ``reference``, which are logits of the same windows."""
    found, start = Divergence(), first_scored(windows[0].size) + 1
    for expected, given, window in zip(reference, other, windows, strict=True):
        found.add(expected, given, window[start:])
    return found


def scored(found: Divergence, weight_bytes: int) -> dict[str, Any]:
    """Bytes of the weights, KL divergences in nats, and the share of positions with the same top token."""
    return {
        "weight_bytes": weight_bytes,
        "mean_kl": found.mean,
        "kl_999": found.quantile(0.999),
        "same_top": found.same_top,
        "positions": found.positions,
    }
