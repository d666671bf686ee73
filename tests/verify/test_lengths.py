"""Default prompts cross the chunks and windows of a model where they can, and the report says where they do not."""

from __future__ import annotations

import numpy as np
import pytest

from hybridge.verification.lengths import LONG, LONGEST, Edge, default_lengths, edges_of, parts_of
from hybridge.verification.verifier import random_prompts
from tests.support.artifacts import ArtifactCache
from tests.support.export_cases import CASES

FAR = 4096


@pytest.mark.parametrize("tokens", [5, 64, 100, 128, 256, 512, 900])
def test_the_long_prompt_crosses_an_edge_at_once_and_in_parts(tokens: int) -> None:
    edge = Edge("chunk", tokens)
    longest = max(default_lengths((Edge("chunk", 64), edge), FAR))
    assert edge.crossed_by(longest) and longest >= LONG and longest % 64
    first, middle, last = parts_of(longest)
    assert first + middle + last == longest and middle > tokens and first + middle > tokens + 1 and last > 1


def test_a_window_that_is_too_far_is_not_crossed() -> None:
    edges = (Edge("chunk", 64), Edge("sliding window", FAR))
    lengths = default_lengths(edges, 10 * FAR)
    assert max(lengths) == LONG < LONGEST
    assert [edge.crossed_by(LONG) for edge in edges] == [True, False]
    assert str(edges[1]) == "the sliding window of 4096 tokens"


@pytest.mark.parametrize(("room", "lengths"), [(500, (1, 7, 133)), (80, (1, 7, 80)), (5, (1, 5)), (1, (1,)), (0, ())])
def test_lengths_fit_into_the_artifact(room: int, lengths: tuple[int, ...]) -> None:
    assert default_lengths((Edge("chunk", 64),), room) == lengths


@pytest.mark.parametrize("length", [2, 3, 7, 33, 84, 85, 133, 1000])
def test_parts_are_the_whole(length: int) -> None:
    parts = parts_of(length)
    assert sum(parts) == length and min(parts) > 0 and len(parts) > 1


def test_edges_are_those_of_graph_and_config(artifacts: ArtifactCache) -> None:
    window = CASES["qwen3 fp32, window"].get(artifacts)
    assert edges_of(window.folder, window.config) == (Edge("sliding window", 5),)
    mamba = CASES["bamba fp32"].get(artifacts)
    assert edges_of(mamba.folder, mamba.config) == (Edge("chunk", 8), Edge("chunk", 64))


def test_no_token_comes_back_before_all_have_come() -> None:
    prompts, sequences = random_prompts(0, 97, (1, 7, 133), 16)
    assert [len(p) for p in prompts] == [1, 7, 133] and [len(s) for s in sequences] == [17, 23, 149]
    assert all(np.array_equal(s[: len(p)], p) for p, s in zip(prompts, sequences, strict=True))
    assert len(set(np.concatenate(prompts).tolist())) == 97
