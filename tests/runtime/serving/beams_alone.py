"""Beam search over the toy model from scratch."""

from __future__ import annotations

import numpy as np

from hybridge.artifact.config import RuntimeConfig
from tests.runtime.toy_paged_engine import toy_logits


def log_softmax(logits: np.ndarray) -> np.ndarray:
    logits = logits.astype(np.float64)
    return logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())


def beams_alone(config: RuntimeConfig, prompt: list[int], new: int, width: int, penalty: float) -> list[list[int]]:
    """Beam search over logits from scratch; ties go to the better beam, then the lower token."""
    beams: list[tuple[float, list[int]]] = [(0.0, [])]
    done: list[tuple[float, list[int]]] = []
    while True:
        continuations = []
        for place, (total, tokens) in enumerate(beams):
            scores = log_softmax(toy_logits(config, prompt + tokens))
            continuations += [(-(total + scores[token]), place, token) for token in range(scores.size)]
        continuations.sort(key=lambda c: (round(c[0], 9), c[1], c[2]))
        kept: list[tuple[float, list[int]]] = []
        for rank, (cost, place, token) in enumerate(continuations[: 2 * width]):
            longer = [*beams[place][1], token]
            if token in config.eos_token_ids:
                if rank < width:
                    done.append((cost / len(longer) ** penalty, longer))
            elif len(kept) < width:
                kept.append((-cost, longer))
        beams = kept
        last = len(beams[0][1]) == new
        if last:
            done += [(-total / len(tokens) ** penalty, tokens) for total, tokens in beams]
        if last or len(done) >= width:
            return [tokens for _, tokens in sorted(done, key=lambda d: d[0])]
