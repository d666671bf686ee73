"""Prompt lengths of a verification: they cross the lengths at which an engine may go wrong."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hybridge.artifact.config import RuntimeConfig
from hybridge.runtime.engines.artifact_graph import read_model

# Tokens that engines and kernels process as one matrix, independent of the artifact.
TILE = 64
SHORT = (1, 7)
# A long prompt has more than two tiles and an odd length, so that the last tile is partial.
LONG = 2 * TILE + 5
# Tokens past the last edge: more than the last two parts of a prompt that is fed in parts.
MARGIN = 37
# Longer chunks are not crossed, because the reference recomputes all tokens for every length.
LONGEST = 1024
# Tokens of the first and the last part of a long prompt that is fed in parts.
FIRST, LAST = 13, 8


CHUNK, WINDOW = "chunk", "sliding window"


@dataclass(frozen=True)
class Edge:
    """A length at which computation changes, such as a chunk or a sliding window (``name``)."""

    name: str
    tokens: int

    def crossed_by(self, length: int) -> bool:
        """Whether a prompt of ``length`` tokens has two tokens past the edge: enough to find one that is off by one."""
        return length >= self.tokens + 2

    def __str__(self) -> str:
        return f"the {self.name} of {self.tokens} tokens"


def edges_of(artifact: Path, config: RuntimeConfig) -> tuple[Edge, ...]:
    """The chunks of the graph's recurrent operators and its sliding windows."""
    chunks = {TILE} if config.recurrent_layers else set()
    for node in read_model(artifact).graph:
        if "chunk_size" in node.attributes:
            chunks.add(node.attributes["chunk_size"].as_int())
    windows = {layer.sliding_window for layer in config.kv_layers if layer.sliding_window}
    return tuple(
        [*(Edge(CHUNK, tokens) for tokens in sorted(chunks)), *(Edge(WINDOW, tokens) for tokens in sorted(windows))]
    )


def default_lengths(edges: tuple[Edge, ...], room: int) -> tuple[int, ...]:
    """Short prompts, and a long one of at most ``room`` tokens that crosses every chunk up to ``LONGEST``.

    A window that the long one does not cross is left to ``long_windows``.
    """
    near = [edge.tokens + MARGIN for edge in edges if edge.name == CHUNK and edge.tokens + MARGIN <= LONGEST]
    longest = min(room, max([LONG, *near]))
    return tuple(sorted({length for length in (*SHORT, longest) if 1 <= length <= longest}))


def parts_of(length: int) -> tuple[int, ...]:
    """Lengths of the parts in which a prompt of at least two tokens is fed.

    The middle part of a long prompt is longer than any edge that it crosses, and the last part begins past that edge.
    """
    if length < FIRST + TILE + LAST:
        first = max(1, length // 3)
        return first, length - first
    return FIRST, length - FIRST - LAST, LAST
