"""Any number of tokens for each of some rows of a state set, right-padded, in steps of bounded size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from hybridge.runtime.engines.dense import DenseEngine, StateSet, StepInputs

# Tokens of one step over all rows: enough to keep matrix products busy, few enough that activations stay small.
STEP_TOKENS = 4096
# With logits for every token the step is also limited by their size, in bytes.
ALL_LOGITS_BYTES = 256 * 2**20
# Scans work in chunks of this many tokens: a step that is a multiple of it wastes none.
_ALIGNMENT = 64


@dataclass
class Prompt:
    """New tokens of a row that has ``past`` others. requested: those of them, in order, after which logits are needed.

    ``logits`` gets these, each [vocab] float32, and ``done`` counts the tokens that were fed.
    """

    row: int
    ids: np.ndarray
    past: int
    requested: Sequence[int]
    logits: list[np.ndarray] = field(default_factory=list)
    done: int = 0

    def chunk(self, size: int, all_logits: bool) -> int:
        """Tokens to feed in a step of ``size`` tokens; a graph that gives logits of the last one alone stops there."""
        end = min(self.done + size, self.ids.size)
        if not all_logits and len(self.logits) < len(self.requested):
            end = min(end, self.requested[len(self.logits)] + 1)
        return end - self.done

    def wants(self, count: int) -> bool:
        """Whether logits are needed after one of the next ``count`` tokens."""
        left = self.requested[len(self.logits) :]
        return bool(left) and left[0] < self.done + count

    def read(self, logits: np.ndarray, count: int) -> None:
        """``count`` tokens were fed, which gave ``logits``, of each [seq, vocab] or of the last [vocab]."""
        begin, self.done = self.done, self.done + count
        for token in self.requested[len(self.logits) :]:
            if token >= self.done:
                break
            self.logits.append((logits[token - begin] if logits.ndim == 2 else logits).copy())


def feed(engine: DenseEngine, states: StateSet, prompts: Sequence[Prompt]) -> None:
    """Feed all of ``prompts``, in as many steps as engine and memory ask for; other rows keep their states."""
    all_logits, pending = engine.config.all_logits, list(prompts)
    while pending:
        size = chunk_length(engine, len(pending), max(each.ids.size - each.done for each in pending))
        counts = [each.chunk(size, all_logits) for each in pending]
        ids = np.zeros((states.batch, max(counts)), np.int64)
        lengths = np.zeros((2, states.batch), np.int32)
        for each, count in zip(pending, counts, strict=True):
            ids[each.row, :count] = each.ids[each.done : each.done + count]
            lengths[:, each.row] = count, each.past + each.done
        inputs = StepInputs(ids, lengths[0], lengths[1])
        if any(each.wants(count) for each, count in zip(pending, counts, strict=True)):
            logits = engine.step(inputs, states)
            for each, count in zip(pending, counts, strict=True):
                each.read(logits[each.row], count)
        else:
            engine.feed(inputs, states)
            for each, count in zip(pending, counts, strict=True):
                each.done += count
        pending = [each for each in pending if each.done < each.ids.size]


def chunk_length(engine: DenseEngine, rows: int, tokens: int) -> int:
    """Tokens per row of the next step when the longest row still has ``tokens`` to feed; at least 1."""
    budget = STEP_TOKENS // rows
    if engine.config.all_logits:
        budget = min(budget, ALL_LOGITS_BYTES // (4 * engine.config.vocab_size * rows))
    budget = max(budget // _ALIGNMENT * _ALIGNMENT, _ALIGNMENT)
    return min(tokens, budget, engine.max_step_tokens)
