"""Default prompts cross the chunks and windows of a model where they can, and the report says where they do not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hybridge.artifact.config import DENSE, RuntimeConfig
from hybridge.artifact.paged import PAGED
from hybridge.verification.lengths import CHUNK, LONG, LONGEST, WINDOW, Edge, default_lengths, edges_of, parts_of
from hybridge.verification.long_windows import FILLED, MOST_BYTES, long_window_rows
from hybridge.verification.options import VerifyOptions
from hybridge.verification.plan import plan_of
from hybridge.verification.verifier import random_prompts
from tests.support.artifacts import ArtifactCache
from tests.support.export_cases import CASES

LONG_WINDOW = 4096


@pytest.mark.parametrize("tokens", [5, 64, 100, 128, 256, 512, 900])
def test_the_long_prompt_crosses_an_edge_at_once_and_in_parts(tokens: int) -> None:
    edge = Edge(CHUNK, tokens)
    longest = max(default_lengths((Edge(CHUNK, 64), edge), LONG_WINDOW))
    assert edge.crossed_by(longest) and longest >= LONG and longest % 64
    first, middle, last = parts_of(longest)
    assert first + middle + last == longest and middle > tokens and first + middle > tokens + 1 and last > 1


def test_a_long_window_makes_no_prompt_longer() -> None:
    edges = (Edge(CHUNK, 64), Edge(WINDOW, LONG_WINDOW))
    lengths = default_lengths(edges, 10 * LONG_WINDOW)
    assert max(lengths) == LONG < LONGEST
    assert [edge.crossed_by(LONG) for edge in edges] == [True, False]
    assert str(edges[1]) == "the sliding window of 4096 tokens"


def with_window(artifacts: ArtifactCache, room: int, window: int, layout: str = DENSE) -> RuntimeConfig:
    """The config of a model of two layers, the second with a window."""
    config = CASES["qwen3 fp32, window"].get(artifacts).config
    layers = [replace(layer, sliding_window=window if layer.sliding_window else None) for layer in config.kv_layers]
    return replace(config, layout=layout, max_seq_len=room, kv_layers=tuple(layers))


@pytest.mark.parametrize("window", [LONG - 1, 1000, LONG_WINDOW, 100_000])
@pytest.mark.parametrize("room", [2, 20, 1000])
def test_a_row_behind_filled_caches_crosses_a_long_window(window: int, room: int, artifacts: ArtifactCache) -> None:
    config = with_window(artifacts, window + room, window)
    (row,) = long_window_rows((Edge(CHUNK, 64), Edge(WINDOW, window)), config, 0, LONG, sum)
    start, end = row.caches.length, row.caches.length + len(row.tokens)
    assert start < window - 1 and row.edge.crossed_by(end) and end <= config.max_seq_len
    # The window leaves filled tokens behind, and others in it.
    assert 1 < end - window < FILLED <= start
    assert np.concatenate(row.parts).tolist() == row.tokens.tolist() and row.edge.crossed_by(start + len(row.parts[0]))


def test_windows_that_no_row_crosses_are_reported(artifacts: ArtifactCache) -> None:
    folder = CASES["qwen3 fp32, window"].get(artifacts).folder

    def told(window: int, room: int, layout: str = DENSE) -> tuple[tuple[str, ...], tuple[str, ...]]:
        plan = plan_of(folder, with_window(artifacts, room, window, layout), VerifyOptions())
        return plan.not_crossed, plan.notes

    huge = 1 << 30
    assert told(LONG_WINDOW, 2 * LONG_WINDOW) == ((), ())
    assert told(LONG_WINDOW, 96) == (
        (),
        ("no row crosses the sliding window of 4096 tokens: the artifact holds 96 tokens",),
    )
    assert told(huge, 2 * huge) == ((f"the sliding window of {huge} tokens",), ())
    assert told(huge, 2 * huge, PAGED) == ((f"the sliding window of {huge} tokens",), ())
    # Of a paged artifact one layer at a time takes memory.
    bytes_a_token = [2 * 4 * kv.num_kv_heads * kv.head_dim for kv in with_window(artifacts, 96, 5).kv_layers]
    between = MOST_BYTES // max(bytes_a_token)
    assert told(between, 2 * between)[0] and not told(between, 2 * between, PAGED)[0]


@pytest.mark.parametrize(("room", "lengths"), [(500, (1, 7, 133)), (80, (1, 7, 80)), (5, (1, 5)), (1, (1,)), (0, ())])
def test_lengths_fit_into_the_artifact(room: int, lengths: tuple[int, ...]) -> None:
    assert default_lengths((Edge(CHUNK, 64),), room) == lengths


@pytest.mark.parametrize("length", [2, 3, 7, 33, 84, 85, 133, 1000])
def test_parts_are_the_whole(length: int) -> None:
    parts = parts_of(length)
    assert sum(parts) == length and min(parts) > 0 and len(parts) > 1


def test_edges_are_those_of_graph_and_config(artifacts: ArtifactCache) -> None:
    window = CASES["qwen3 fp32, window"].get(artifacts)
    assert edges_of(window.folder, window.config) == (Edge(WINDOW, 5),)
    mamba = CASES["bamba fp32"].get(artifacts)
    assert edges_of(mamba.folder, mamba.config) == (Edge(CHUNK, 8), Edge(CHUNK, 64))


def test_no_token_comes_back_before_all_have_come() -> None:
    prompts, sequences = random_prompts(0, 97, (1, 7, 133), 16)
    assert [len(p) for p in prompts] == [1, 7, 133] and [len(s) for s in sequences] == [17, 23, 149]
    assert all(np.array_equal(s[: len(p)], p) for p, s in zip(prompts, sequences, strict=True))
    assert len(set(np.concatenate(prompts).tolist())) == 97
