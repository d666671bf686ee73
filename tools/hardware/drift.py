"""Thousands of decode steps against ONNX Runtime on the same tokens."""

from __future__ import annotations

import numpy as np

from hardware.agreement import relative_error
from hardware.rows import Rows
from hardware.subject import CHECKED, REFERENCE, Found, Subject

TOKENS = 2000
# Lengths at which logits are compared, as shares of ``TOKENS``.
_SHARES = (0.001, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 1.0)
_CHUNK = 64


def decode_long(subject: Subject) -> Found:
    """Greedy decoding in TensorRT; its tokens as a prompt in ONNX Runtime. Errors of logits by length, and of states.

    The reference reads chunks, so that errors accumulated over single steps show.
    """
    with subject.opened(CHECKED) as found:
        count = min(TOKENS, subject.config.max_seq_len, found.config.max_seq_len)
        lengths = sorted({max(1, round(share * count)) for share in _SHARES})
        tokens, logits, states = _decoded(Rows(found, 1, count), count, lengths)
    with subject.opened(REFERENCE) as expected:
        rows = Rows(expected, 1, count)
        limit = min(_CHUNK, expected.limits.max_tokens)
        errors: dict[int, float | None] = {}
        for length in lengths:
            while (past := int(rows.lengths[0])) < length:
                last = rows.step([tokens[past : min(length, past + limit)]])
            errors[length] = relative_error(logits[length], last[0])
        own = rows.states()
    state_errors = {n: relative_error(a, own[n]) for n, a in states.items()}
    result: Found = {"tokens": count, "errors": {str(n): e for n, e in errors.items()}, "states": state_errors}
    wrong = [what for what, e in [*errors.items(), *state_errors.items()] if e is None or e > subject.tolerance]
    if wrong:
        where = f"logits after {wrong[0]} tokens" if isinstance(wrong[0], int) else f"{wrong[0]} after {count} tokens"
        result["error"] = f"expected {where} within {subject.tolerance:g} of {REFERENCE}, found more: see errors"
    return result


def _decoded(
    rows: Rows, count: int, lengths: list[int]
) -> tuple[np.ndarray, dict[int, np.ndarray], dict[str, np.ndarray]]:
    """The ``count`` tokens that were fed, the logits after ``lengths`` of them, and the states at the end."""
    tokens, logits, last = [], {}, 1
    for length in range(1, count + 1):
        tokens.append(last)
        row = rows.step([np.array([last])])[0]
        last = int(np.argmax(row))
        if length in lengths:
            logits[length] = row.copy()
    return np.array(tokens), logits, rows.states()
