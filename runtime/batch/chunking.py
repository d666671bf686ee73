"""How many tokens of a prompt go into one step."""

from __future__ import annotations

from hybridge.runtime.engines.base import Engine

# Tokens of one step over all rows: enough to keep matrix products busy, few enough that activations stay small.
STEP_TOKENS = 4096
# With logits for every token the step is also limited by their size, in bytes.
ALL_LOGITS_BYTES = 256 * 2**20
# Scans work in chunks of this many tokens: a step that is a multiple of it wastes none.
_ALIGNMENT = 64


def chunk_length(engine: Engine, rows: int, tokens: int) -> int:
    """Tokens per row of the next step when the longest row still has ``tokens`` to feed; at least 1."""
    budget = STEP_TOKENS // rows
    if engine.config.all_logits:
        budget = min(budget, ALL_LOGITS_BYTES // (4 * engine.config.vocab_size * rows))
    budget = max(budget // _ALIGNMENT * _ALIGNMENT, _ALIGNMENT)
    return min(tokens, budget, engine.max_step_tokens)
