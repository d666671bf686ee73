"""Whether our decoder and transformers compute the same from one checkpoint."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from hybridge.verification.reference import Reference, ReferenceRun
from tests.support.eager_decoder import EagerDecoder, StepResult

# Relative L2 norm, float32 against float32: sums in another order differ by about 1e-6 after a few layers.
TOLERANCE = 1e-5


def relative_error(found: np.ndarray | torch.Tensor, wanted: np.ndarray | torch.Tensor) -> float:
    """L2 norm of the difference over the norm of ``wanted`` (absolute where that is 0)."""
    a, b = np.asarray(found, dtype=np.float64), np.asarray(wanted, dtype=np.float64)
    assert a.shape == b.shape, (a.shape, b.shape)
    norm = float(np.linalg.norm(b))
    return float(np.linalg.norm(a - b)) / (norm if norm > 0 else 1.0)


def tokens_of(config_vocab: int, length: int, seed: int = 0) -> np.ndarray:
    """Random token ids [length] int64."""
    return np.random.default_rng(seed).integers(0, config_vocab, length)


def assert_one_shot_agrees(folder: Path, length: int = 21, reference_folder: Path | None = None) -> EagerDecoder:
    """Feed ``length`` tokens at once and compare logits, hidden states of every layer, and all states.

    ``reference_folder`` is the checkpoint as transformers reads it where that differs from ``folder``.
    """
    ours = EagerDecoder(folder)
    expected = Reference(reference_folder or folder, ours.config).run(
        tokens := tokens_of(ours.config.vocab_size, length)
    )
    assert_row_agrees(ours, ours.step([tokens], [0], ours.zero_states(1, length)), expected)
    return ours


def assert_row_agrees(ours: EagerDecoder, found: StepResult, wanted: ReferenceRun, row: int = 0) -> None:
    """Compare one row whose last tokens ``found`` are the end of the sequence ``wanted``."""
    length = wanted.logits.shape[0]
    fed = found.logits.shape[1]
    assert relative_error(found.logits[row], wanted.logits[length - fed :]) < TOLERANCE, "logits"
    for index, hidden in enumerate(found.hidden):
        assert relative_error(hidden[row], wanted.hidden[index][length - fed :]) < TOLERANCE, f"layer {index}"
    assert_states_agree(ours, found.states, wanted, row)


def assert_states_agree(ours: EagerDecoder, states: dict[str, torch.Tensor], wanted: ReferenceRun, row: int) -> None:
    """Compare all states of one row after all tokens of ``wanted``; a window's cache keeps only its last positions."""
    length = wanted.logits.shape[0]
    for binding in ours.config.bindings.states:
        expected, state = wanted.states[binding.name], states[binding.name][row]
        if "max_seq" in binding.shape:
            state = state[:, length - expected.shape[1] : length]
        assert relative_error(state, expected) < TOLERANCE, binding.name
