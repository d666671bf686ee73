"""The operator CachedAttention of our CPU library against float64, and where it replaces nodes of a graph."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from hybridge.runtime.engines.onnxruntime.cpu_library import cpu_library
from tests.runtime.onnxruntime.own_operator import EACH_SET, run_operator

pytestmark = pytest.mark.skipif(cpu_library().path is None, reason=f"no library: {cpu_library().reason}")


@dataclass(frozen=True)
class Case:
    """Rows with ``past`` tokens each get ``time`` more; ``angles`` rotate a part of each head.

    latents: keys are the values too, as rotated.
    """

    past: tuple[int, ...]
    time: int
    heads: int
    kv_heads: int
    size: int = 16
    angles: int = 0
    window: int = 0
    latents: bool = False


CASES = {
    "one token": Case((0,), 1, 4, 2, angles=8),
    "one token of rows": Case((5, 130, 0), 1, 6, 2, 32, angles=4),
    "one token in a window": Case((200,), 1, 3, 3, 64, window=70),
    "a prompt": Case((0,), 150, 6, 2, 32, angles=16),
    "prompts after others": Case((3, 77), 67, 4, 1, 48, angles=8),
    "a prompt in a window": Case((90,), 140, 2, 2, window=9),
    "a prompt of many heads": Case((1,), 9, 40, 1),
    "one token of latents": Case((130, 4), 1, 20, 1, 48, latents=True),
    "a prompt of latents": Case((3,), 70, 6, 1, 32, angles=8, latents=True),
    "two tokens": Case((64, 63), 2, 2, 1),
}


def inputs_of(case: Case) -> dict[str, np.ndarray | None]:
    """Random inputs; the caches are NaN behind the past tokens."""
    random, rows = np.random.default_rng(case.time), len(case.past)
    capacity = max(case.past) + case.time + 3
    tensors: dict[str, np.ndarray | None] = {
        "query": random.standard_normal((rows, case.time, case.heads * case.size)) * 2,
        "key": random.standard_normal((rows, case.time, case.kv_heads * case.size)),
        "value": random.standard_normal((rows, case.time, case.kv_heads * case.size)),
    }
    for name in ("past_keys", "past_values"):
        cache = np.full((rows, case.kv_heads, capacity, case.size), np.nan)
        for row, count in enumerate(case.past):
            cache[row, :, :count] = random.standard_normal((case.kv_heads, count, case.size))
        tensors[name] = cache
    wide = random.uniform(-9, 9, (rows, case.time, case.angles))
    tensors |= {
        "last": np.array(case.past) + case.time - 1,
        "cos": np.cos(wide) if case.angles else None,
        "sin": np.sin(wide) if case.angles else None,
    }
    if case.latents:
        tensors |= {"value": None, "past_values": None}
    found = {name: None if array is None else array.astype(np.float32) for name, array in tensors.items()}
    return found | {"last": tensors["last"].astype(np.int32)}  # type: ignore[union-attr]


def expected_of(case: Case, given: dict[str, np.ndarray | None], scale: float) -> dict[str, np.ndarray]:
    """y and the caches in float64."""
    wide = {name: array.astype(np.float64) for name, array in given.items() if array is not None}
    rows, time, size = len(case.past), case.time, case.size

    def heads(name: str, turned: bool) -> np.ndarray:
        x = wide[name].reshape(rows, time, -1, size)
        if case.angles and turned:
            first, second, rest = np.split(x, [case.angles, 2 * case.angles], -1)
            cos, sin = wide["cos"][:, :, None], wide["sin"][:, :, None]
            x = np.concatenate([first * cos - second * sin, second * cos + first * sin, rest], -1)
        return x

    query, key = heads("query", True), heads("key", True)
    value = key if case.latents else heads("value", False)
    keys, y = wide["past_keys"].copy(), np.zeros_like(query)
    values = keys if case.latents else wide["past_values"].copy()
    for row, past in enumerate(case.past):
        keys[row, :, past : past + time] = key[row].swapaxes(0, 1)
        values[row, :, past : past + time] = value[row].swapaxes(0, 1)
        for t in range(time):
            seen = slice(max(0, past + t + 1 - case.window) if case.window else 0, past + t + 1)
            for head in range(case.heads):
                own = head // (case.heads // case.kv_heads)
                scores = keys[row, own, seen] @ query[row, t, head] * scale
                weights = np.exp(scores - scores.max())
                y[row, t, head] = weights @ values[row, own, seen] / weights.sum()
    return {"y": y.reshape(rows, time, -1), "keys": keys, "values": values}


def run(case: Case, given: dict[str, np.ndarray | None], shared: bool, instructions: int = 0) -> dict[str, np.ndarray]:
    query, cache = given["query"], given["past_keys"]
    assert query is not None and cache is not None
    names = ("keys",) if case.latents else ("keys", "values")
    return run_operator(
        "CachedAttention",
        given,
        {"y": query.shape} | dict.fromkeys(names, cache.shape),
        {name: f"past_{name}" for name in names} if shared else None,
        threads=2,
        scale=0.2,
        window=case.window,
        instructions=instructions,
    )


@EACH_SET
@pytest.mark.parametrize("name", CASES)
def test_attention(name: str, instructions: int) -> None:
    case = CASES[name]
    given = inputs_of(case)
    expected = expected_of(case, given, 0.2)
    found = run(case, given, shared=len(case.past) < 3, instructions=instructions)
    np.testing.assert_allclose(found["y"], expected["y"], rtol=1e-4, atol=3e-6)
    for row, past in enumerate(case.past):
        for kind in found.keys() - {"y"}:
            length = past + case.time
            np.testing.assert_allclose(found[kind][row, :, :length], expected[kind][row, :, :length], atol=1e-6)


def test_scores_far_apart() -> None:
    case = CASES["a prompt"]
    given = inputs_of(case)
    assert given["query"] is not None
    given["query"] *= 500
    found, expected = run(case, given, shared=True), expected_of(case, given, 0.2)
    np.testing.assert_allclose(found["y"], expected["y"], rtol=2e-3, atol=2e-3)


def test_inputs_whose_sizes_disagree_are_refused() -> None:
    case = CASES["prompts after others"]
    for name, wrong in (
        ("last", np.array([66 + 3, 66 + 77 + 4], np.int32)),  # beyond the capacity
        ("last", np.array([65, 66 + 77], np.int32)),
        ("key", np.zeros((2, 67, 47), np.float32)),
        ("sin", None),
        ("value", None),
        ("cos", np.zeros((1, 67, 8), np.float32)),
    ):
        with pytest.raises(Exception, match="CachedAttention: expected inputs whose sizes agree"):
            run(case, {**inputs_of(case), name: wrong}, shared=True)
