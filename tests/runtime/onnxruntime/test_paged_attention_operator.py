"""Attention of the library of CPU kernels over blocks of a pool, against float64, by instruction set."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from hybridge.runtime.engines.onnxruntime.cpu_library import cpu_library
from tests.ops.oracle import relative_error
from tests.runtime.onnxruntime.own_operator import EACH_SET, run_operator

pytestmark = pytest.mark.skipif(cpu_library().path is None, reason=f"no library: {cpu_library().reason}")


@dataclass(frozen=True)
class Case:
    """tokens: new ones, at the end of ``seen``. heads: of keys, and of queries for each."""

    tokens: int
    seen: int
    heads: tuple[int, int]
    head_dim: int
    block_size: int
    window: int = 0
    softcap: float = 0.0
    sinks: bool = False


CASES = {
    "one token": Case(1, 1, (1, 1), 3, 5),
    "first chunk": Case(70, 70, (2, 3), 64, 16),
    "later chunk": Case(9, 211, (3, 1), 83, 7, sinks=True),
    "window": Case(90, 333, (1, 4), 16, 16, window=65),
    "window of one": Case(5, 40, (2, 2), 7, 4, window=1, softcap=2.0),
    "capped": Case(33, 100, (1, 2), 20, 32, softcap=0.7, sinks=True),
}


def inputs(case: Case) -> dict[str, np.ndarray]:
    """A pool in which NaN is everywhere but in the positions that the row sees."""
    rng = np.random.default_rng(case.seen)
    kv_heads, ratio = case.heads
    count = -(-case.seen // case.block_size)
    pool = np.full((2, count + 3, kv_heads, case.block_size, case.head_dim), np.nan, np.float32)
    blocks = rng.permutation(count + 3)[:count]
    for position in range(case.seen):
        block, offset = blocks[position // case.block_size], position % case.block_size
        pool[:, block, :, offset] = rng.standard_normal((2, kv_heads, case.head_dim))
    rows = blocks * kv_heads + np.arange(kv_heads)[:, None]
    q = 2 * rng.standard_normal((case.tokens, kv_heads * ratio, case.head_dim)).astype(np.float32)
    q[0] *= 100  # the largest score outweighs all others
    seen = np.array([case.seen], np.int32)
    given: dict[str, np.ndarray] = {"q": q, "pool": pool, "blocks": rows[None].astype(np.int64), "seen": seen}
    if case.sinks:
        given["sinks"] = rng.standard_normal(kv_heads * ratio).astype(np.float32)
    return given


def expected(case: Case, given: dict[str, np.ndarray]) -> np.ndarray:
    """The outputs [tokens, heads, head_dim] in float64."""
    kv_heads, ratio = case.heads
    flat = given["pool"].astype(np.float64).reshape(2, -1, case.block_size, case.head_dim)
    keys, values = (part[given["blocks"][0]].reshape(kv_heads, -1, case.head_dim)[:, : case.seen] for part in flat)
    scores = np.einsum("thd,hsd->hts", given["q"].astype(np.float64), keys.repeat(ratio, 0)) * SCALE
    if case.softcap:
        scores = case.softcap * np.tanh(scores / case.softcap)
    own = case.seen - case.tokens + np.arange(case.tokens)[:, None]
    position = np.arange(case.seen)
    hidden = (position > own) | (position <= own - (case.window or case.seen))
    scores[:, hidden] = -np.inf
    sinks = given.get("sinks", np.full(kv_heads * ratio, -np.inf)).astype(np.float64)[:, None, None]
    most = np.maximum(scores.max(2, keepdims=True), sinks)
    weights = np.exp(scores - most)
    weights /= weights.sum(2, keepdims=True) + np.exp(sinks - most)
    found: np.ndarray = np.einsum("hts,hsd->thd", weights, values.repeat(ratio, 0))
    return found


SCALE = 0.3


def attended(case: Case, given: dict[str, Any], instructions: int) -> np.ndarray:
    """The operator's outputs."""
    return run_operator(
        "PagedAttention",
        {name: given.get(name) for name in ("q", "pool", "blocks", "seen", "sinks", "starts")},
        {"y": given["q"].shape},
        threads=2,
        window=case.window,
        scale=SCALE,
        softcap=case.softcap,
        instructions=instructions,
    )["y"]


@EACH_SET
@pytest.mark.parametrize("name", CASES)
def test_it_is_that_of_float64(name: str, instructions: int) -> None:
    case = CASES[name]
    given = inputs(case)
    assert relative_error(attended(case, given, instructions), expected(case, given)) < 3e-6


def test_rows_of_any_length_share_a_call() -> None:
    cases = [Case(tokens, seen, (2, 2), 16, 4, window=30, sinks=True) for tokens, seen in ((9, 40), (1, 3), (50, 50))]
    rows = [inputs(case) for case in cases]
    for row in rows:
        row["sinks"] = rows[0]["sinks"]
    expected = np.concatenate([attended(case, row, 0) for case, row in zip(cases, rows, strict=True)])
    # The pools follow each other, and shorter rows repeat their last block.
    first = np.cumsum([0, *(2 * row["pool"].shape[1] for row in rows)])
    blocks = [row["blocks"] + at for row, at in zip(rows, first, strict=False)]
    most = max(each.shape[2] for each in blocks)
    given = {
        "q": np.concatenate([row["q"] for row in rows]),
        "pool": np.concatenate([row["pool"] for row in rows], axis=1),
        "blocks": np.concatenate([np.pad(b, ((0, 0), (0, 0), (0, most - b.shape[2])), "edge") for b in blocks]),
        "seen": np.concatenate([row["seen"] for row in rows]),
        "sinks": rows[0]["sinks"],
        "starts": np.array([0, 9, 10, 60], np.int32),
    }
    np.testing.assert_array_equal(attended(cases[0], given, 0), expected)
    for starts in ([0, 9, 10, 61], [0, 11, 10, 60], [1, 9, 10, 60], [0, 60]):
        with pytest.raises(Exception, match="PagedAttention: expected inputs whose sizes agree"):
            attended(cases[0], given | {"starts": np.array(starts, np.int32)}, 0)


@pytest.mark.parametrize(
    "changes",
    [
        {"blocks": np.full((1, 1, 20), 10**6, np.int64)},
        {"blocks": np.full((1, 1, 20), -1, np.int64)},
        {"seen": np.array([4], np.int32)},
        {"seen": np.array([10**6], np.int32)},
        {"sinks": np.zeros(3, np.float32)},
        {"q": np.zeros((5, 4, 8), np.float32)},
        {"q": np.zeros((5, 4), np.float32)},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_inputs_that_disagree_are_refused(changes: dict[str, np.ndarray]) -> None:
    case = Case(5, 40, (1, 4), 16, 2)
    with pytest.raises(Exception, match="PagedAttention: expected inputs whose sizes agree, and blocks of the pool"):
        attended(case, inputs(case) | changes, 0)


def test_no_tokens_give_no_outputs() -> None:
    case = Case(0, 8, (1, 2), 16, 4)
    given = inputs(Case(1, 8, (1, 2), 16, 4))
    given["q"] = given["q"][:0]
    assert attended(case, given, 0).shape == (0, 2, 16)
