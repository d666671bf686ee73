"""Graph inputs that the paged engine adds to those of the artifact, and their values. Needs no onnx_ir."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

# The packed token at each place of the rectangle of ragged rows, and the place, row * time + index, of each token.
TOKEN_OF_PLACE, PLACE_OF_TOKEN = "engine.token_of_place", "engine.place_of_token"
# Inputs of graphs without a fixed number of tokens: see ``decay_sums`` and ``decay_after``.
DECAY_SUMS, DECAY_AFTER = "engine.decay_sums", "engine.decay_after"
MOST_REPLAYED = 8
"""Most tokens of a row whose states are replayed: the delta rule's inverse has this many powers."""


@dataclass(frozen=True)
class KvShape:
    """Parameters of the engine's key and value inputs; ``window`` 0 is full attention.

    parts: 1 where keys are the values too, else 2.
    """

    kv_heads: int
    window: int
    parts: int = 2

    @property
    def kv_indices(self) -> str:
        """Indices of new keys, then new values: int64 [parts * tokens * kv_heads, 4] into the stored pool."""
        return f"engine.kv_indices.{self.kv_heads}.{self.parts}"

    def blocks(self, kind: str) -> str:
        """Rows of [parts * num_blocks * kv_heads, block_size, head_dim], ``kind`` key or value: int64 [rows, heads, m].

        Keys that are the values too have the name of keys.
        """
        kind = "key" if self.parts == 1 else kind
        return f"engine.{kind}_blocks.{self.kv_heads}.{self.window}"

    def by_token(self, kv_indices: np.ndarray, tokens: int) -> np.ndarray:
        """``kv_indices`` of so many tokens as [parts, tokens, kv_heads, 4]: part, block, head, offset."""
        return kv_indices.reshape(self.parts, tokens, self.kv_heads, 4)

    def block_feeds(self, keys: np.ndarray, num_blocks: int) -> dict[str, np.ndarray]:
        """The inputs ``blocks`` of each part, where ``keys`` are those of keys and a part has one block more."""
        apart = (num_blocks + 1) * self.kv_heads
        return {self.blocks(kind): keys + part * apart for part, kind in enumerate(("key", "value")[: self.parts])}

    @property
    def seen(self) -> str:
        """Tokens in the blocks of one row: int32 [1]."""
        return f"engine.seen.{self.window}"

    @property
    def last_seen(self) -> str:
        """The place of the last one in them: int32 [1]."""
        return f"engine.last_seen.{self.window}"

    @property
    def bias(self) -> str:
        """0 where a token attends to a position, else -inf: float32 [rows, 1, time, s]."""
        return f"engine.bias.{self.window}"


def ragged_feeds(counts: np.ndarray) -> dict[str, np.ndarray]:
    """The inputs that place the tokens of rows of ``counts`` [rows] tokens."""
    index = np.arange(counts.max())
    starts = np.cumsum(counts) - counts
    inside = index < counts[:, None]
    return {
        TOKEN_OF_PLACE: starts[:, None] + np.minimum(index, counts[:, None] - 1),
        PLACE_OF_TOKEN: np.flatnonzero(inside),
    }


@lru_cache(maxsize=MOST_REPLAYED)
def decay_feeds(count: int) -> dict[str, np.ndarray]:
    """The decay inputs for ``count`` tokens of each row; not to be changed."""
    return {DECAY_SUMS: decay_sums(count), DECAY_AFTER: decay_after(count)}


def decay_sums(count: int) -> np.ndarray:
    """[t, t * (t + 1)]: column i * (t + 1) + 1 + j adds up the tokens between j and i, i * (t + 1) those up to i."""
    index = np.arange(count)
    first = np.concatenate(([-1], index))
    terms = (index > first[None, :, None]) & (index <= index[:, None, None])
    return np.ascontiguousarray(terms.reshape(-1, count).T.astype(np.float32))


def decay_after(count: int) -> np.ndarray:
    """[t, t + 1]: -inf where token j, of column 1 + j, comes after token i."""
    first = np.arange(-1, count)
    return np.where(first[None, :] > np.arange(count)[:, None], -np.inf, 0.0).astype(np.float32)
