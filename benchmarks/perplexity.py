"""Perplexity of a checkpoint that ships, through its exported artifact and through transformers."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass

import numpy as np

from benchmarks.agreement import logits_gate
from benchmarks.artifacts import CHECKPOINTS, HELD_OUT_TEXT, exported, scratch_folder
from benchmarks.engine_runs import dense_inputs
from benchmarks.peer import Peer
from benchmarks.runner import Report, Target, require
from hybridge.runtime.engines import DenseEngine, create_dense_engine
from hybridge.runtime.engines.factory import EngineOptions
from hybridge.runtime.text import Tokenizer

MOST_DIFFERENCE = 1e-3
Logits = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class PerplexitySettings:
    """The text in windows of ``window`` tokens, each after a BOS of its own; ``most_windows`` None takes all.

    ``checkpoint`` is the name of a folder of examples/checkpoints.
    """

    checkpoint: str = "tiny-nemotron-h"
    window: int = 512
    most_windows: int | None = None
    threads: int = 2


def run(settings: PerplexitySettings) -> Report:
    """Windows as one prompt each, and token by token through the decode step, against transformers."""
    windows = text_windows(HELD_OUT_TEXT.read_text(encoding="utf-8"), settings)
    checkpoint = CHECKPOINTS / settings.checkpoint
    peer = Peer(checkpoint, settings.threads)
    options = {"max_batch_size": 1, "max_seq_len": settings.window, "all_logits": True}
    with scratch_folder() as folder:
        artifact = exported(checkpoint, folder / "artifact", **options)
        with closing(create_dense_engine(artifact, "onnxruntime", EngineOptions(settings.threads))) as engine:
            gates = require(logits_gate(settings.checkpoint, engine, peer, settings.window // 2, 4))
            values = {
                "transformers": perplexity(peer.logits, windows),
                "one prompt": perplexity(lambda ids: _logits(engine, ids, ids.size), windows),
                "token by token": perplexity(lambda ids: _logits(engine, ids, 1), windows),
            }
    expected = values["transformers"]
    differences = {name: value / expected - 1 for name, value in values.items() if name != "transformers"}
    targets = tuple(
        Target(f"perplexity, {name}, off transformers'", 100 * abs(value), "at most", 100 * MOST_DIFFERENCE, "%")
        for name, value in differences.items()
    )
    results = {"perplexity": values, "relative_difference": differences}
    return Report(gates, results, targets, {"text": HELD_OUT_TEXT.name, "windows": len(windows)})


def text_windows(text: str, settings: PerplexitySettings) -> np.ndarray:
    """int64 [windows, window + 1]: BOS and ``window`` tokens; what does not fill a window is left out."""
    tokenizer = Tokenizer.from_folder(CHECKPOINTS / settings.checkpoint)
    ids = np.asarray(tokenizer.encode(text, add_special_tokens=False), np.int64)
    rows = ids[: ids.size // settings.window * settings.window].reshape(-1, settings.window)[: settings.most_windows]
    return np.concatenate([np.full((len(rows), 1), tokenizer.bos_token_id, np.int64), rows], axis=1)


def perplexity(logits: Logits, windows: np.ndarray) -> float:
    """exp of the mean natural-log loss of every token after the BOS; ``logits`` maps ids [t] to [t, vocab]."""
    losses = [_losses(logits(window[:-1]), window[1:]) for window in windows]
    return math.exp(float(np.concatenate(losses).mean()))


def _losses(logits: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """-log softmax(logits [t, vocab]) at ``expected`` [t], in float64."""
    scores = logits.astype(np.float64)
    scores -= scores.max(axis=1, keepdims=True)
    return np.log(np.exp(scores).sum(axis=1)) - scores[np.arange(expected.size), expected]


def _logits(engine: DenseEngine, ids: np.ndarray, step_tokens: int) -> np.ndarray:
    """Logits [t, vocab] of ``ids`` [t] in steps of ``step_tokens`` from empty states."""
    states = engine.allocate_states(1, ids.size)
    parts = []
    for start in range(0, ids.size, step_tokens):
        tokens = ids[start : start + step_tokens]
        parts.append(engine.step(dense_inputs(tokens[None], start), states)[0].copy())
    return np.concatenate(parts)
