"""Gates: an artifact computes what its reference computes."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from benchmarks.engine_runs import EngineRuns
from benchmarks.peer import Peer
from benchmarks.runner import Gate
from hybridge.runtime.engines import DenseEngine, create_dense_engine
from hybridge.runtime.engines.factory import EngineOptions

# Relative norm of the difference of logits; float32 sums in another order differ by 1e-6.
LOGITS_TOLERANCE = 1e-4
# The same of an engine in bfloat16 against float32; verify has this number for such engines.
BFLOAT16_TOLERANCE = 5e-2


def relative_error(found: np.ndarray, expected: np.ndarray) -> float:
    """Norm of the difference over the norm of ``expected``, in float64."""
    difference = found.astype(np.float64) - expected.astype(np.float64)
    return float(np.linalg.norm(difference) / np.linalg.norm(expected.astype(np.float64)))


def error_gate(checks: str, found: Iterable[np.ndarray], expected: Iterable[np.ndarray], limit: float) -> Gate:
    """The largest relative error of all pairs of arrays."""
    worst = max(relative_error(*pair) for pair in zip(found, expected, strict=True))
    return Gate(f"{checks}, relative error", worst, limit)


def random_prompt(vocab_size: int, tokens: int, seed: int = 0) -> np.ndarray:
    """Token ids [tokens] int64, the same for the same arguments."""
    return np.random.default_rng(seed).integers(0, vocab_size, tokens)


def logits_gate(name: str, engine: DenseEngine, peer: Peer, tokens: int, steps: int) -> Gate:
    """Logits after a random prompt of ``tokens`` and after each of ``steps`` single tokens that follow it."""
    sequence = random_prompt(engine.config.vocab_size, tokens + steps, seed=1)
    checks = f"{name}: logits of a prompt of {tokens} tokens and {steps} decode steps against transformers"
    return error_gate(
        checks, EngineRuns(engine).logits(sequence, tokens, 1), peer.logits(sequence)[tokens - 1 :], LOGITS_TOLERANCE
    )


def checkpoint_gate(name: str, checkpoint: Path, artifact: Path, threads: int, tokens: int, steps: int) -> Gate:
    """``logits_gate`` of an artifact and the checkpoint that it was exported from."""
    engine = create_dense_engine(artifact, options=EngineOptions(threads))
    try:
        return logits_gate(name, engine, Peer(checkpoint, threads), tokens, steps)
    finally:
        engine.close()


def tokens_gate(name: str, found: list[int], expected: list[int]) -> Gate:
    """Greedy tokens must be the same, one by one."""
    wrong = sum(a != b for a, b in zip(found, expected, strict=False)) + abs(len(found) - len(expected))
    return Gate(f"{name}: greedy tokens that differ from transformers', of {len(expected)}", float(wrong), 0.0)
