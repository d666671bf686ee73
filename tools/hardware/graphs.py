"""Captured decode steps against the same steps run directly."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import numpy as np

from hardware.agreement import relative_error
from hardware.rows import Rows
from hardware.subject import Found, Subject
from hybridge.artifact.dtypes import DType
from hybridge.runtime.engines.tensorrt.decode_step import DecodeStep

STEPS, PROMPT_TOKENS = 12, 9
# One rounding: both run the same engine, but another context may choose other kernels.
TOLERANCE = {DType.FLOAT32: 2**-20, DType.FLOAT16: 2**-10, DType.BFLOAT16: 2**-7}


def compare_graphs(subject: Subject) -> Found:
    """Logits and states of ``STEPS`` steps of all rows; the second step of a size is captured, the rest replay it."""
    captured, direct = _run(subject, captures=True), _run(subject, captures=False)
    errors = {what: relative_error(values, direct[what]) for what, values in captured.items()}
    same = all(np.array_equal(values, direct[what]) for what, values in captured.items())
    found: Found = {"steps": STEPS, "same_bits": same, "errors": errors}
    tolerance = TOLERANCE[subject.config.dtype]
    wrong = [what for what, error in errors.items() if error is None or error > tolerance]
    if wrong:
        found["error"] = (
            f"expected {wrong[0]} of captured steps within {tolerance:g} of steps that run directly, found "
            f"{errors[wrong[0]]}"
        )
    return found


def _run(subject: Subject, captures: bool) -> dict[str, np.ndarray]:
    with nullcontext() if captures else direct_steps(), subject.opened() as engine:
        rows = engine.limits.max_rows
        random, vocabulary = np.random.default_rng(2), engine.config.vocab_size
        batch = Rows(engine, rows, PROMPT_TOKENS + STEPS)
        batch.step([random.integers(0, vocabulary, 1 + row % PROMPT_TOKENS) for row in range(rows)])
        logits = [batch.step(list(random.integers(0, vocabulary, (rows, 1)))).copy() for _ in range(STEPS)]
        return {"logits": np.stack(logits), **batch.states()}


@contextmanager
def direct_steps() -> Iterator[None]:
    """Within this context, no step of this process is captured."""
    before, DecodeStep.captures = DecodeStep.captures, False
    try:
        yield
    finally:
        DecodeStep.captures = before
