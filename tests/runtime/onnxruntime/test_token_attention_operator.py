"""Attention of one token of each row in the library of CPU kernels, against float64, by instruction set."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from hybridge.runtime.engines.onnxruntime.cpu_library import cpu_library
from tests.ops.oracle import relative_error
from tests.runtime.onnxruntime.own_operator import EACH_SET, run_operator

pytestmark = pytest.mark.skipif(cpu_library().path is None, reason=f"no library: {cpu_library().reason}")

SCALE = 0.3
# One row is padding: it has no tokens and is stored nowhere.
LENGTHS = (1, 77, 0, 20, 311)


@dataclass(frozen=True)
class Case:
    """heads: of keys, and of queries for each."""

    heads: tuple[int, int]
    head_dim: int
    block_size: int
    parts: int = 2
    window: int = 0
    softcap: float = 0.0
    sinks: bool = False


CASES = {
    "plain": Case((2, 3), 32, 16),
    "odd sizes": Case((3, 1), 83, 7, sinks=True),
    "window": Case((1, 4), 16, 16, window=65),
    "window of one": Case((2, 2), 7, 4, window=1, softcap=2.0),
    "latents": Case((1, 5), 40, 5, parts=1, softcap=0.7, sinks=True),
}


def inputs(case: Case) -> dict[str, np.ndarray]:
    """A pool in which NaN is everywhere but in the positions before the new tokens, each row's from its window on."""
    rng, (kv_heads, ratio), size = np.random.default_rng(len(LENGTHS)), case.heads, case.block_size
    rows, columns = len(LENGTHS), -(-max(LENGTHS) // size) + 1
    table = rng.permutation(rows * columns).reshape(rows, columns).astype(np.int32)
    pool = np.full((case.parts, rows * columns, kv_heads, size, case.head_dim), np.nan, np.float32)
    slots = np.full(rows, -1, np.int32)
    for row, length in enumerate(LENGTHS):
        first = max(length - case.window, 0) if case.window else 0
        for position in range(first, length - 1):
            pool[:, table[row, position // size], :, position % size] = rng.standard_normal(
                (case.parts, kv_heads, case.head_dim)
            )
        if length:
            slots[row] = table[row, (length - 1) // size] * size + (length - 1) % size
        table[row, : first // size], table[row, -(-length // size) :] = -1, -1
    q = 2 * rng.standard_normal((rows, kv_heads * ratio * case.head_dim)).astype(np.float32)
    q[1] *= 100  # the largest score outweighs all others
    given = {"q": q, "pool": pool, "slots": slots, "table": table, "lengths": np.array(LENGTHS, np.int32)}
    for name in ("key", "value")[: case.parts]:
        given[name] = rng.standard_normal((rows, kv_heads, case.head_dim)).astype(np.float32)
    if case.sinks:
        given["sinks"] = rng.standard_normal(kv_heads * ratio).astype(np.float32)
    return given


def written(given: dict[str, np.ndarray]) -> np.ndarray:
    """The pool with the new tokens."""
    pool = given["pool"].copy()
    for row, slot in enumerate(given["slots"].tolist()):
        for part, name in enumerate(("key", "value")[: len(pool)]):
            if slot >= 0:
                pool[part, slot // pool.shape[3], :, slot % pool.shape[3]] = given[name][row]
    return pool


def expected(case: Case, given: dict[str, np.ndarray]) -> np.ndarray:
    """The outputs [rows, heads * head_dim] in float64."""
    (kv_heads, ratio), pool = case.heads, written(given).astype(np.float64)
    sinks = given.get("sinks", np.full(kv_heads * ratio, -np.inf)).astype(np.float64)
    found = np.zeros((len(LENGTHS), kv_heads * ratio, case.head_dim))
    for row, length in enumerate(LENGTHS):
        places = np.arange(max(length - case.window, 0) if case.window else 0, length)
        if not places.size:
            continue
        blocks = given["table"][row, places // case.block_size]
        # [parts, heads, places, head_dim]
        seen = pool[:, blocks, :, places % case.block_size].transpose(1, 2, 0, 3).repeat(ratio, 1)
        q = given["q"][row].reshape(kv_heads * ratio, 1, case.head_dim).astype(np.float64)
        scores = SCALE * (q * seen[0]).sum(2)
        if case.softcap:
            scores = case.softcap * np.tanh(scores / case.softcap)
        most = np.maximum(scores.max(1), sinks)
        weights = np.exp(scores - most[:, None])
        weights /= weights.sum(1, keepdims=True) + np.exp(sinks - most)[:, None]
        found[row] = (weights[:, :, None] * seen[-1]).sum(1)
    return found.reshape(len(LENGTHS), -1)


def attended(case: Case, given: dict[str, Any], instructions: int, in_place: bool = True) -> dict[str, np.ndarray]:
    """y and the pool after it."""
    return run_operator(
        "PagedTokenAttention",
        {name: given.get(name) for name in ("q", "key", "value", "pool", "slots", "table", "lengths", "sinks")},
        {"y": given["q"].shape, "new_pool": given["pool"].shape},
        {"new_pool": "pool"} if in_place else {},
        threads=2,
        window=case.window,
        scale=SCALE,
        softcap=case.softcap,
        instructions=instructions,
    )


@EACH_SET
@pytest.mark.parametrize("name", CASES)
def test_it_is_that_of_float64_and_writes_the_new_tokens(name: str, instructions: int) -> None:
    case = CASES[name]
    given = inputs(case)
    found = attended(case, given, instructions, in_place=name != "plain")
    # Scores of some hundreds are rounded to 3e-5.
    assert relative_error(found["y"], expected(case, given)) < 1e-5
    np.testing.assert_array_equal(found["new_pool"], written(given))


@pytest.mark.parametrize(
    "changes",
    [
        {"slots": np.full(5, 10**6, np.int32)},
        {"table": np.full((5, 21), 10**6, np.int32)},
        {"table": np.full((5, 21), -1, np.int32)},
        {"lengths": np.full(5, 10**6, np.int32)},
        {"lengths": np.full(5, -1, np.int32)},
        {"q": np.zeros((5, 33), np.float32)},
        {"key": np.zeros((5, 2, 31), np.float32)},
        {"value": None},
        {"sinks": np.zeros(3, np.float32)},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_inputs_that_disagree_are_refused(changes: dict[str, np.ndarray | None]) -> None:
    case = CASES["plain"]
    with pytest.raises(
        Exception, match="PagedTokenAttention: expected inputs whose sizes agree, and blocks of the pool"
    ):
        attended(case, inputs(case) | changes, 0)
