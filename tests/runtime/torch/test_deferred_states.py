"""Deferred states on the torch engine: the kernel calls, what tokens store, and whose memory it is."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

pytest.importorskip("torch", reason="the torch engine needs torch")

from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import EngineError
from hybridge.runtime.engines.pool_sizes import PoolSizes
from hybridge.runtime.engines.rollback.modes import REPLAY, SNAPSHOT
from hybridge.runtime.engines.torch.paged_engine import TorchPagedEngine
from tests.runtime.torch.test_kernel_calls import QWEN
from tests.runtime.torch.test_paged_kernel_calls import PAGED, with_planned_kernels
from tests.support.artifacts import ArtifactCache
from tests.support.deferred_rows import BLOCK, MOST, ROWS, Rows
from tests.support.effort import sample

SCANS = {"nemotron_h": "update_ssm_state", "qwen3_next": "gated_delta_rule"}
CONV = "causal_conv1d"


def test_snapshots_are_in_slots_of_the_engine_alone(artifacts: ArtifactCache) -> None:
    engine = TorchPagedEngine(artifacts.get("nemotron_h", "float32", layout="paged").folder, device="cpu")
    engine.prepare_rollback(ROWS, 1 + MOST, SNAPSHOT)
    rows = Rows(engine)
    rows.check([[1, 2], [3], [4, 5, 6]], [1, 1, 3])
    before = [*rows.states()]
    engine.step(replace(rows.inputs([[7, 8, 9], [1], [2, 3]]), deferred=np.array([True, False, True])))
    for state, old in zip(rows.states(), before, strict=True):
        np.testing.assert_array_equal(state[[0, 2]], old[[0, 2]])
    slots = rows.engine.pools.sizes.num_slots  # type: ignore[attr-defined]
    assert all(len(engine.read_pool(spec.name)) == slots for spec in engine.config.bindings.states if not spec.grows)
    assert engine.rollback_token_bytes == engine.slot_bytes


def test_unprepared_rollbacks_are_refused(artifacts: ArtifactCache) -> None:
    engine = TorchPagedEngine(artifacts.get("nemotron_h", "float32", layout="paged").folder, device="cpu")
    with pytest.raises(EngineError, match="recurrent operators causal_conv1d, update_ssm_state, found 'conv'"):
        engine.prepare_rollback(ROWS, 2, {"conv": REPLAY})
    engine.prepare_rollback(1, 2)
    rows = Rows(engine)
    step = rows.inputs([[1, 2], [3, 4], [5]])
    with pytest.raises(EngineError, match="at most 1 deferred rows in a step, found 2"):
        engine.step(replace(step, deferred=np.array([True, True, False])))
    with pytest.raises(EngineError, match=r"rows of at most 2 tokens.* and rows of up to 3"):
        engine.step(replace(rows.inputs([[1, 2, 3], [3], [5]]), deferred=np.array([True, False, False])))


@pytest.mark.parametrize(
    ("family", "dtype"),
    sample(
        product(SCANS, (DType.BFLOAT16, DType.FLOAT32)),
        on_push=[("nemotron_h", DType.FLOAT32)],
    ),
)
def test_checks_and_advances_run_the_kernels_of_draft_tokens(
    family: str, dtype: DType, artifacts: ArtifactCache
) -> None:
    sizes = {"nemotron_h": PAGED, "qwen3_next": {**QWEN, "head_dim": 64}}[family]
    exported = artifacts.get(family, "bfloat16", sizes, dtype=dtype, layout="paged")
    engine, kernels = with_planned_kernels(exported)
    found = []
    for each in (engine, TorchPagedEngine(exported.folder, device="cpu")):
        each.prepare_rollback(ROWS, 1 + MOST)
        rows = Rows(each)
        layers = len(exported.config.recurrent_layers)
        first = rows.check([[1, 2, 3], [4], [5, 6]], [3, 1, 1])
        deferred = np.array([True, False, True])
        kernels.calls.clear()
        logits = [
            first,
            each.step(replace(rows.inputs([[7, 8], [1, 2, 3, 4, 5, 6], [9, 9, 9, 1]]), deferred=deferred)).copy(),
        ]
        if each is engine:
            assert kernels.calls[SCANS[family]] == layers == kernels.calls[CONV]
        each.advance(np.array([1, 0, 3]))
        if each is engine:
            assert kernels.calls[SCANS[family]] == 2 * layers == kernels.calls[CONV]
        found.append([*logits, *rows.states()])
    for one, other in zip(*found, strict=True):
        error = np.linalg.norm((one - other).astype(np.float64)) / np.linalg.norm(other.astype(np.float64))
        assert error < (1e-5 if dtype is DType.FLOAT32 else 3e-2)


REAL = {
    "nemotron_h": {
        "hybrid_override_pattern": "M*",
        "hidden_size": 64,
        "mamba_num_heads": 128,
        "mamba_head_dim": 64,
        "ssm_state_size": 128,
        "n_groups": 8,
    },
    "qwen3_next": {
        "num_hidden_layers": 2,
        "layer_types": ["linear_attention", "full_attention"],
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 32,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
    },
}


@pytest.mark.parametrize("family", SCANS)
def test_a_token_takes_at_most_3_percent_of_a_state_of_real_size(family: str, artifacts: ArtifactCache) -> None:
    exported = artifacts.get(family, "bfloat16", REAL[family], layout="paged")
    engine = TorchPagedEngine(exported.folder, device="cpu")
    engine.prepare_rollback(2, 3)
    assert set(engine.rollback_modes.values()) == {REPLAY}
    conv = sum(2 * layer.conv_dim for layer in exported.config.recurrent_layers)
    assert conv < engine.rollback_token_bytes <= 0.03 * engine.slot_bytes


def test_pools_may_be_replaced(artifacts: ArtifactCache) -> None:
    engine = TorchPagedEngine(artifacts.get("nemotron_h", "float32", layout="paged").folder, device="cpu")
    for slots in (12, 20):
        rows = Rows(engine)
        engine.allocate_pools(PoolSizes(15, BLOCK, slots))
        engine.zero_slots(rows.slots[:, 0].tolist())
        rows.check([[1, 2, 3], [4, 5], [6]], [2, 2, 1])
        engine.step(replace(rows.inputs([[7, 8], [9], [1]]), deferred=np.array([True, False, False])))
        # Earlier deferred rows are dropped.
        engine.allocate_pools(PoolSizes(15, BLOCK, slots))
        with pytest.raises(EngineError, match="row 0: expected 0 to 0 tokens"):
            engine.advance(np.array([1, 0, 0]))
