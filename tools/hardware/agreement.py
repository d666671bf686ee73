"""Two engines of one artifact on the same tokens: logits and states, step by step."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np

from hardware.rows import Rows
from hardware.subject import CHECKED, REFERENCE, Found, Subject
from hybridge.runtime.engines.paged import PagedEngine

PROMPT_TOKENS, CHUNK_TOKENS, DECODE_STEPS, ROWS = 33, 5, 8, 3


@dataclass(frozen=True)
class Comparison:
    """The relative error of ``what`` in one step; None where a value was not finite."""

    step: str
    what: str
    error: float | None
    tolerance: float

    @property
    def passed(self) -> bool:
        return self.error is not None and self.error <= self.tolerance


def verify(subject: Subject) -> Found:
    """A ragged prompt, a later chunk without tokens for one row, and single tokens, in TensorRT and ONNX Runtime."""
    with subject.opened(CHECKED) as found, subject.opened(REFERENCE) as expected:
        comparisons = compare_engines(found, expected, subject.tolerance)
    wrong = [comparison for comparison in comparisons if not comparison.passed]
    result: Found = {"comparisons": [asdict(comparison) for comparison in comparisons]}
    if wrong:
        first = wrong[0]
        result["error"] = (
            f"expected {first.what} of the step {first.step!r} within {first.tolerance:g} of {REFERENCE}, found "
            f"{first.error}: {len(wrong)} of {len(comparisons)} comparisons differ; report this file"
        )
    return result


def compare_engines(found: PagedEngine, expected: PagedEngine, tolerance: float) -> list[Comparison]:
    """Logits of every step, and states after the prompt, the chunk and the last token.

    Both engines get the same tokens, whatever they predict.
    """
    rows = min(ROWS, found.limits.max_rows, expected.limits.max_rows)
    room = min(found.config.max_seq_len, expected.config.max_seq_len)
    prompt = min(PROMPT_TOKENS, found.limits.max_tokens // rows, room - CHUNK_TOKENS - DECODE_STEPS)
    sides = tuple(Rows(engine, rows, room) for engine in (found, expected))
    random, comparisons = np.random.default_rng(0), []

    def step(name: str, lengths: list[int], with_states: bool = False) -> None:
        new = [random.integers(0, found.config.vocab_size, length) for length in lengths]
        mine, theirs = (side.step(new).copy() for side in sides)
        comparisons.append(_compared(name, "logits", mine, theirs, tolerance))
        if with_states:
            before, after = (side.states() for side in sides)
            comparisons.extend(
                _compared(name, state, values, after[state], tolerance) for state, values in before.items()
            )

    step("prompt", [max(1, prompt - 7 * row) for row in range(rows)], with_states=True)
    step("chunk", [CHUNK_TOKENS if row == 0 else 0 if row == 1 else 2 for row in range(rows)], with_states=True)
    for index in range(DECODE_STEPS):
        step(f"decode {index}", [1] * rows, with_states=index == DECODE_STEPS - 1)
    return comparisons


def relative_error(found: np.ndarray, expected: np.ndarray) -> float | None:
    """The norm of the difference over that of ``expected``; None where a value is not finite."""
    found, expected = found.astype(np.float64), expected.astype(np.float64)
    error = float(np.linalg.norm(found - expected) / max(float(np.linalg.norm(expected)), 1e-30))
    return error if bool(np.isfinite(found).all() and np.isfinite(error)) else None


def _compared(step: str, what: str, found: np.ndarray, expected: np.ndarray, tolerance: float) -> Comparison:
    return Comparison(step, what, relative_error(found, expected), tolerance)
