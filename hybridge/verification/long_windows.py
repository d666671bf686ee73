"""Sliding windows longer than a prompt: a row whose caches are filled, not computed, up to the window's edge.

Keys and values of its first tokens are random, all others before the edge are zero. A step that wrongly attends to one
of the first tokens, or misses one, gives another result; zeros cost an engine on a CPU almost nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from hybridge.artifact import names
from hybridge.artifact.config import RuntimeConfig
from hybridge.verification.lengths import WINDOW, Edge

# New tokens up to the edge, and past it; the last of these are fed one by one.
BEFORE, BEHIND, DECODED = 20, 25, 8
# Tokens with keys and values: after the last new token, BEHIND of them are outside of the window.
FILLED = BEFORE + BEHIND
# Memory for the row's caches in float32. A dense engine holds those of all layers, some of them twice for a step; a
# paged one has a single block of zeros, but attends in one layer at a time, as the reference does.
MOST_BYTES = 1 << 30
# Largest factor of values: products with them stay within float16.
_LARGEST_FACTOR = 256.0


@dataclass(frozen=True)
class FilledCaches:
    """Keys and values of the first ``length`` tokens of a row, zero except for those of the first ``FILLED``.

    numbers: by name of the dense state float8_e4m3fn [kv_heads, FILLED, head_dim], which every type of a cache holds
    exactly; values are these times ``value_factor``, a power of two, since each is one among a window's.
    """

    length: int
    numbers: Mapping[str, np.ndarray]
    value_factor: float

    def factor(self, name: str) -> float:
        """The factor of the numbers of the state ``name``."""
        return self.value_factor if name.startswith(names.past_value(0)[:-1]) else 1.0

    def first(self, name: str) -> np.ndarray:
        """Keys or values [kv_heads, FILLED, head_dim] float32 of the first tokens."""
        return self.numbers[name].astype(np.float32) * np.float32(self.factor(name))


@dataclass(frozen=True)
class LongWindowRow:
    """New ``tokens`` [n] int64, after ``caches``; the window ``edge`` is ``BEFORE`` tokens after the first."""

    edge: Edge
    caches: FilledCaches
    tokens: np.ndarray

    @property
    def parts(self) -> list[np.ndarray]:
        """The tokens of each step: one that crosses the window, then single ones."""
        at_once = max(BEFORE + 2, len(self.tokens) - DECODED)
        return np.split(self.tokens, range(at_once, len(self.tokens)))


def long_window_rows(
    edges: tuple[Edge, ...],
    config: RuntimeConfig,
    seed: int,
    longest: int,
    cache_bytes: Callable[[Iterable[int]], int],
) -> tuple[LongWindowRow, ...]:
    """A row for each window that prompts of ``longest`` tokens do not cross but the artifact's rows can.

    Windows that begin among the filled tokens, or whose caches take more than ``MOST_BYTES``, are left out.
    cache_bytes: memory of the caches from the bytes of each layer.
    """
    return tuple(
        _row(edge, config, np.random.default_rng([seed, edge.tokens]))
        for edge in edges
        if edge.name == WINDOW
        and not edge.crossed_by(longest)
        and edge.tokens >= FILLED + BEFORE
        and edge.crossed_by(config.max_seq_len)
        and cache_bytes(_layer_bytes(config, edge.tokens)) <= MOST_BYTES
    )


def _row(edge: Edge, config: RuntimeConfig, random: np.random.Generator) -> LongWindowRow:
    numbers = {
        name: random.standard_normal((layer.num_kv_heads, FILLED, layer.head_dim)).astype(ml_dtypes.float8_e4m3fn)
        for k, layer in enumerate(config.kv_layers)
        for name in layer.state_names(k)
    }
    # As many values as are filled, each with a weight of about 1 / window, add up to a usual size.
    factor = min(_LARGEST_FACTOR, 2.0 ** np.floor(np.log2(edge.tokens / 16)))
    start = edge.tokens - BEFORE
    count = min(BEFORE + BEHIND, config.max_seq_len - start)
    return LongWindowRow(edge, FilledCaches(start, numbers, factor), random.integers(0, config.vocab_size, count))


def _layer_bytes(config: RuntimeConfig, tokens: int) -> list[int]:
    """Bytes of each layer's keys and values in float32."""
    return [layer.parts * 4 * tokens * layer.num_kv_heads * layer.head_dim for layer in config.kv_layers]
