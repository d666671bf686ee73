"""Decode steps over states with rings: the logits and states of plain steps, whatever comes between them."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch", reason="the torch engine needs torch")

from hybridge.runtime.engines.torch.paged_engine import TorchPagedEngine
from hybridge.trt_plugins.specs.ring import RING
from hybridge.verification.paged_sequences import PagedSequences
from tests.support.artifacts import ArtifactCache, Exported

BLOCK = 16
# New tokens of each sequence: prompts, decoding until a ring is full and further, a chunk next to a decoding row,
# decoding with a new sequence, a step with one row less.
STEPS = (
    {0: 5, 1: 1},
    *({0: 1, 1: 1} for _ in range(RING + 3)),
    {0: 1, 1: 4},
    {0: 1, 1: 1, 2: 1},
    *({0: 1, 2: 1} for _ in range(3)),
    {0: 1, 1: 1, 2: 1},
)
TOLERANCE = 2e-5


@pytest.fixture(scope="module", params=["nemotron_h", pytest.param("qwen3_next", marks=pytest.mark.slow)])
def hybrid(artifacts: ArtifactCache, request: pytest.FixtureRequest) -> Exported:
    return artifacts.get(request.param, "float32", layout="paged")


def run_steps(engine: TorchPagedEngine) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Logits of all tokens, and the states of all sequences at the end."""
    sequences = PagedSequences(engine, 3, 60, BLOCK)
    handles = [sequences.add() for _ in range(3)]
    tokens = np.random.default_rng(2).integers(0, engine.config.vocab_size, (3, 60))
    logits: list[np.ndarray] = []
    fed = [0] * 3
    for step in STEPS:
        work = {handles[i]: tokens[i, fed[i] : fed[i] + n] for i, n in step.items()}
        logits += sequences.step(work).values()
        for i, n in step.items():
            fed[i] += n
    assert sequences.untouched()
    return logits, [state for handle in handles for state in sequences.states(handle).values()]


def check_equal(found: list[np.ndarray], expected: list[np.ndarray]) -> None:
    for one, other in zip(found, expected, strict=True):
        error = np.linalg.norm((one - other).astype(np.float64)) / max(np.linalg.norm(other.astype(np.float64)), 1e-9)
        assert error < TOLERANCE


def test_steps_give_the_logits_and_states_of_plain_steps(hybrid: Exported) -> None:
    plain, ringed = (TorchPagedEngine(hybrid.folder, "cpu", ring_rows=rows) for rows in (None, 1))
    (logits, states), (expected, expected_states) = run_steps(ringed), run_steps(plain)
    check_equal(logits, expected)
    check_equal(states, expected_states)
