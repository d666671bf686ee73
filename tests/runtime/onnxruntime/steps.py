"""Feeding an engine in tests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from hybridge.runtime.engines.dense import StepInputs
from hybridge.runtime.engines.onnxruntime import OnnxRuntimeEngine
from tests.runtime.onnxruntime.hand_made import HandMade
from tests.runtime.onnxruntime.hand_made_plan import Plan

TOLERANCE = 1e-5
"""Relative norm of float32 against float64 (docs: numerics)."""


def engine_of(plan: Plan, folder: Path) -> tuple[HandMade, OnnxRuntimeEngine]:
    """The oracle and the engine of one hand-made artifact."""
    made = HandMade(plan)
    return made, OnnxRuntimeEngine(made.write(folder / "artifact"), threads=1)


def step_inputs(rows: Sequence[np.ndarray], past: Sequence[int], padding: int = 0) -> StepInputs:
    """Right-padded rows; ``padding`` is the token that fills them up."""
    lengths = np.array([len(row) for row in rows], np.int32)
    ids = np.full((len(rows), max(1, lengths.max())), padding, np.int64)
    for row, tokens in enumerate(rows):
        ids[row, : len(tokens)] = tokens
    return StepInputs(ids, lengths, np.array(past, np.int32))


def relative_error(found: np.ndarray, expected: np.ndarray) -> float:
    """Norm of the difference over the norm of the oracle; infinity when anything is not finite."""
    error = np.linalg.norm(np.asarray(found, np.float64) - expected) / max(np.linalg.norm(expected), 1e-30)
    return float(error) if np.isfinite(error) else float("inf")
