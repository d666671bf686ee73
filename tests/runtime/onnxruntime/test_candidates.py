"""Steps with candidate tokens: the engine against the file as it is, on pools full of random states."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hybridge.artifact.errors import EngineError
from hybridge.runtime.engines.candidates import read_slots, with_candidates
from hybridge.runtime.engines.onnxruntime.paged_engine import OnnxRuntimePagedEngine
from hybridge.runtime.engines.onnxruntime.paged_portable import PortablePagedEngine
from hybridge.runtime.engines.paged import PackedInputs, PoolSizes
from tests.support.artifacts import ArtifactCache

COLUMNS, BLOCK_SIZE, SLOTS = 4, 8, 16
SIZES = PoolSizes(12, BLOCK_SIZE, SLOTS)
CASES = {
    "one_token": [1],
    "candidates": [3, 4],
    "prompt": [9],
    "mixed": [1, 4, 6],
}


def step_of(counts: list[int], columns: int, padding: int, seed: int) -> PackedInputs:
    """Rows of ``counts`` tokens with random slots and accepted counts; some states are kept nowhere."""
    rng = np.random.default_rng(seed)
    rows = len(counts) + padding
    lengths = [*counts, *[1] * padding]
    tokens = sum(lengths)
    table = np.full((rows, columns), -1, np.int32)
    table[: len(counts)] = rng.permutation(SLOTS)[: len(counts) * columns].reshape(-1, columns)
    accepted = rng.integers(0, columns + 2, rows).astype(np.int32)
    for row in range(len(counts)):
        dropped = int(rng.integers(0, columns))
        if dropped != np.clip(accepted[row], 1, columns) - 1:
            table[row, dropped] = -1
    mapping = np.concatenate(
        [(2 * r * BLOCK_SIZE + np.arange(n)) if r < len(counts) else [-1] for r, n in enumerate(lengths)]
    )
    return PackedInputs(
        input_ids=rng.integers(0, 50, tokens),
        positions=np.concatenate([np.arange(n) for n in lengths]),
        query_start_loc=np.array([0, *np.cumsum(lengths)], np.int32),
        seq_lens=np.array([*counts, *[0] * padding], np.int32),
        block_table=np.array([[2 * r, 2 * r + 1] for r in range(rows)], np.int32),
        slot_mapping=mapping.astype(np.int32),
        state_indices=table,
        logits_indices=np.arange(sum(counts), dtype=np.int32),
        num_accepted_tokens=accepted,
    )  # fmt: skip


@pytest.fixture(scope="module", params=["nemotron_h", "qwen3_next"])
def engines(request: pytest.FixtureRequest, artifacts: ArtifactCache) -> tuple:
    folder = artifacts.get(request.param, "float32", layout="paged", speculative_tokens=COLUMNS - 1).folder
    return OnnxRuntimePagedEngine(folder, threads=1), PortablePagedEngine(folder, threads=1)


def fill(engine: OnnxRuntimePagedEngine | PortablePagedEngine) -> None:
    engine.allocate_pools(SIZES)
    rng = np.random.default_rng(1)
    for spec in engine.config.bindings.states:
        pool = engine.pools.view(spec.name)
        pool[...] = 0.0 if spec.grows else rng.standard_normal(pool.shape)


def assert_same(engines: tuple, steps: list[PackedInputs]) -> None:
    for engine in engines:
        fill(engine)
    for step in steps:
        found, wanted = (engine.step(step).copy() for engine in engines)
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
    for spec in engines[0].config.bindings.states:
        found, wanted = (engine.pools.view(spec.name) for engine in engines)
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5, err_msg=spec.name)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("seed", range(2))
def test_engines_agree_about_candidates(case: str, seed: int, engines: tuple) -> None:
    assert_same(engines, [step_of(CASES[case], COLUMNS, padding=0, seed=seed)])


def test_rows_of_padding_touch_nothing(engines: tuple) -> None:
    assert_same(engines, [step_of([3], COLUMNS, padding=1, seed=4)])


def test_steps_without_candidates_replace_their_slots(engines: tuple) -> None:
    step = step_of([1, 3, 7], COLUMNS, padding=0, seed=5)
    plain = replace(step, state_indices=read_slots(step), num_accepted_tokens=None)
    assert_same(engines, [plain])
    again = with_candidates(plain, COLUMNS)
    np.testing.assert_array_equal(read_slots(again), plain.state_indices)
    fill(engines[1])
    states = [spec.name for spec in engines[1].config.bindings.states if not spec.grows]
    engines[1].step(again)
    for name in states:
        found, wanted = (engine.pools.view(name) for engine in engines)
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def test_candidates_of_another_number_are_refused(engines: tuple) -> None:
    fill(engines[0])
    step = step_of([2], COLUMNS - 1, padding=0, seed=6)
    with pytest.raises(EngineError, match=r"state_indices of 1 rows with 4 slots each, found .* and \[1, 3\]"):
        engines[0].step(step)


def test_an_artifact_without_candidates_refuses_them(artifacts: ArtifactCache) -> None:
    engine = PortablePagedEngine(artifacts.get("nemotron_h", "float32", layout="paged").folder, threads=1)
    fill(engine)
    step = step_of([2], COLUMNS, padding=0, seed=7)
    with pytest.raises(EngineError, match="an artifact exported with `speculative_tokens` alone"):
        engine.step(replace(step, state_indices=read_slots(step)))
