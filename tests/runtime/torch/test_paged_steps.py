"""Prepared steps, and that they compute what one step computes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("torch", reason="the torch engine needs torch")

import torch

from hybridge.artifact.errors import EngineError
from hybridge.runtime.engines.packed_inputs import PackedInputs
from hybridge.runtime.engines.pool_sizes import PoolSizes
from hybridge.runtime.engines.rollback.draft_inputs import draft_inputs
from hybridge.runtime.engines.rollback.rollback import SnapshotSlots
from hybridge.runtime.engines.torch import paged_steps
from hybridge.runtime.engines.torch.paged_engine import TorchPagedEngine
from hybridge.runtime.engines.torch.step_rows import StepRows
from hybridge.runtime.engines.torch.step_shapes import draft_shape, padded_shape
from tests.support.artifacts import ArtifactCache, Exported

MOST, BLOCK_SIZE = 4, 8
SIZES = PoolSizes(12, BLOCK_SIZE, 16)
# Of a step: new tokens of each row, whether rows of several up to MOST are deferred, and where it is prepared.
STEPS = {
    "one token per row": ([1, 1, 1], False, "decode"),
    "a prompt beside decoding rows": ([1, 6, 1], False, "mixed"),
    "longer prompts": ([6, 6, 6], False, "mixed"),
    "draft tokens": ([1, MOST, 2], True, "draft"),
    "a prompt beside draft tokens": ([MOST, MOST + 3], True, "mixed"),
}


@pytest.fixture(scope="module")
def exported(artifacts: ArtifactCache) -> Exported:
    return artifacts.get("nemotron_h", "float32", layout="paged")


def packed(counts: list[int], defers: bool) -> PackedInputs:
    rng, rows, tokens = np.random.default_rng(7), len(counts), sum(counts)
    step = PackedInputs(
        input_ids=rng.integers(0, 50, tokens),
        positions=np.concatenate([np.arange(n) for n in counts]),
        query_start_loc=np.array([0, *np.cumsum(counts)], np.int32),
        seq_lens=np.array(counts, np.int32),
        block_table=np.array([[2 * r, 2 * r + 1] for r in range(rows)], np.int32),
        slot_mapping=np.concatenate([2 * r * BLOCK_SIZE + np.arange(n) for r, n in enumerate(counts)]).astype(np.int32),
        state_indices=rng.permutation(SIZES.num_slots)[:rows].astype(np.int32),
        logits_indices=np.arange(tokens, dtype=np.int32),
    )  # fmt: skip
    return replace(step, deferred=np.array([1 < n <= MOST for n in counts])) if defers else step


def filled(engine: TorchPagedEngine) -> None:
    """The same random states in new pools."""
    engine.allocate_pools(SIZES)
    engine.fill_pools(0.0)
    rng = np.random.default_rng(1)
    for spec in engine.config.bindings.states:
        if not spec.grows:
            values = rng.standard_normal(spec.resolve(num_slots=SIZES.num_slots)).astype(np.float32)
            engine.pools.tensors[spec.name][: SIZES.num_slots] = torch.from_numpy(values)


def prepared(engine: TorchPagedEngine, inputs: PackedInputs) -> np.ndarray:
    """Logits of a step, computed on the CPU as on a GPU."""
    given = engine._deferring(inputs)
    return engine._steps.launch(given, engine.pools, engine._program, engine._states_of(given)).all_logits()


def opened(exported: Exported) -> TorchPagedEngine:
    engine = TorchPagedEngine(exported.folder, device="cpu")
    engine.prepare_rollback(4, MOST, {"causal_conv1d": "snapshot"})
    return engine


@pytest.mark.parametrize("name", STEPS)
def test_a_prepared_step_agrees_with_one_computed_at_once(name: str, exported: Exported) -> None:
    counts, defers, kind = STEPS[name]
    engine, inputs, found = opened(exported), packed(counts, defers), []
    for way in (engine.step, lambda step: prepared(engine, step)):
        filled(engine)
        logits = way(inputs).copy()
        if inputs.deferred is not None:
            engine.advance(np.where(inputs.deferred, 2, 0))
        found.append([logits, *(engine.read_pool(spec.name) for spec in engine.config.bindings.states)])
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-4, atol=2e-5)
    steps = {"decode": engine.decode_steps, "draft": engine.draft_steps, "mixed": engine.mixed_steps}
    assert {each: len(made) for each, made in steps.items()} == {each: int(each == kind) for each in steps}
    filled(engine)
    assert not any(steps.values())


def test_a_repeated_shape_is_prepared_once_and_the_latest_shapes_are_cached(
    exported: Exported, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paged_steps, "MOST_MIXED", 2)
    engine, made = opened(exported), []
    filled(engine)
    prompt, other, longer = "a prompt beside decoding rows", "a prompt beside draft tokens", "longer prompts"
    for name in (prompt, other, prompt, longer):
        prepared(engine, packed(*STEPS[name][:2]))
        made.append(list(engine.mixed_steps))
    first, second = made[1]
    assert made[0] == [first] and made[2] == [second, first] and made[3][0] == first and len(made[3]) == 2
    assert second not in engine.mixed_steps


def test_sizes_of_recorded_steps() -> None:
    def size(counts: list[int], most: int = 64) -> tuple[int, int]:
        inputs, _ = draft_inputs(packed(counts, True), MOST, SnapshotSlots(16, MOST))
        found = draft_shape(inputs, MOST, most, BLOCK_SIZE).size
        assert found.logits == found.stored == found.tokens
        return found.rows, found.tokens

    assert [size([2]), size([4]), size([4, 2]), size([4, 4, 4])] == [(1, 4), (1, 4), (2, 8), (4, 16)]
    assert size([2, 2, 2], most=3) == (3, 8)


@pytest.mark.parametrize(("tokens", "longest"), [(1023, 1024), (1024, 1024), (1025, 2048)])
def test_the_longest_row_is_padded_to_a_power_of_two(tokens: int, longest: int) -> None:
    inputs = PackedInputs(
        input_ids=np.zeros(1 + tokens, np.int64),
        positions=np.arange(1 + tokens),
        query_start_loc=np.array([0, 1, 1 + tokens], np.int32),
        seq_lens=np.array([1, tokens], np.int32),
        block_table=np.zeros((2, 128), np.int32),
        slot_mapping=np.zeros(1 + tokens, np.int32),
        state_indices=np.array([0, 1], np.int32),
        logits_indices=np.array([0, tokens], np.int32),
    )
    assert padded_shape(inputs, 0, 16)[0].longest == longest


def test_rows_after_those_of_one_token_are_named_without_padding() -> None:
    """A single token, three tokens, none, and two tokens of a padding row."""
    bounds = torch.tensor([0, 1, 4, 4, 6], dtype=torch.int32)
    rows = StepRows(bounds, (1, 3, 0, 2), (5, 7, 9, 0), 1, 3)
    assert rows.singles == 1 and list(rows.others()) == [(1, 1, 4)]


def test_steps_that_run_row_by_row_are_not_recorded() -> None:
    rows = StepRows(torch.zeros(4, dtype=torch.int32), None, None, 0, MOST)
    assert rows.rows == 3
    with pytest.raises(EngineError, match="kernels for every operator of a recorded step"):
        list(rows.others())
