"""The calls that a GPU's kernels get of packed steps: planned for an H200 and computed by torch, in place."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch", reason="the torch engine needs torch")

from hybridge.artifact.dtypes import DType
from hybridge.runtime.engines.torch.paged_engine import TorchPagedEngine
from hybridge.trt_plugins.kernels import catalog
from hybridge.verification.paged_sequences import PagedSequences
from tests.runtime.torch.planned_kernels import AlignedWeights, PlannedKernels
from tests.runtime.torch.test_fusion import TOLERANCES
from tests.runtime.torch.test_kernel_calls import LATENTS, NEMOTRON, QWEN
from tests.support.artifacts import ArtifactCache, Exported

PAGED = {**NEMOTRON, "head_dim": 64}
# Tokens of each sequence in each step: prompts, decoding next to a chunk, decoding, a row of one after longer ones.
STEPS = ({0: 9, 1: 1, 2: 5}, {1: 1, 2: 1, 0: 7}, {2: 1, 0: 1, 1: 1}, {0: 3, 1: 1})
BLOCK = 16


def with_planned_kernels(exported: Exported) -> tuple[TorchPagedEngine, PlannedKernels]:
    """The engine on the CPU, which plans its kernels as on a GPU."""
    engine, kernels = TorchPagedEngine(exported.folder, device="cpu"), PlannedKernels()
    engine._model._programs.clear()
    engine._model.weights = AlignedWeights(exported.folder, engine.device.torch)
    engine.device.kernels = kernels
    return engine, kernels


def run_steps(engine: TorchPagedEngine, kernels: PlannedKernels | None) -> tuple[list[np.ndarray], list[dict]]:
    """Logits of all tokens and states of all sequences at the end; the calls of each step."""
    sequences = PagedSequences(engine, 3, 60, BLOCK)
    handles = [sequences.add() for _ in range(3)]
    tokens = np.random.default_rng(2).integers(0, engine.config.vocab_size, (3, 40))
    logits: list[np.ndarray] = []
    fed, calls = [0] * 3, []
    for step in STEPS:
        work = {handles[i]: tokens[i, fed[i] : fed[i] + n] for i, n in step.items()}
        logits += sequences.step(work).values()
        for i, n in step.items():
            fed[i] += n
        calls.append({} if kernels is None else dict(kernels.calls))
        if kernels is not None:
            kernels.calls.clear()
    assert sequences.untouched()
    return [*logits, *(state for handle in handles for state in sequences.states(handle).values())], calls


@pytest.mark.parametrize("dtype", [DType.BFLOAT16, DType.FLOAT32])
def test_packed_steps_run_their_kernels_in_place(dtype: DType, artifacts: ArtifactCache) -> None:
    exported = artifacts.get("nemotron_h", "bfloat16", PAGED, dtype=dtype, layout="paged")
    expected, _ = run_steps(TorchPagedEngine(exported.folder, device="cpu"), None)
    engine, kernels = with_planned_kernels(exported)
    found, calls = run_steps(engine, kernels)
    for one, other in zip(found, expected, strict=True):
        error = np.linalg.norm((one - other).astype(np.float64)) / np.linalg.norm(other.astype(np.float64))
        assert error < TOLERANCES[dtype.value]
    # Two mixers: two calls of a step whose first rows have one token, where others follow.
    assert [step["update_ssm_state"] for step in calls if "update_ssm_state" in step] == [2, 4, 2]
    assert calls[2]["mamba2_conv_scan"] == 2 and "causal_conv1d" not in calls[2]
    for name in {"paged_attention", "reshape_and_cache"} & set(catalog.operators()):
        assert [step[name] for step in calls] == [1] * len(STEPS)


def test_latents_are_written_and_read_once(artifacts: ArtifactCache) -> None:
    exported = artifacts.get("kimi_linear", "bfloat16", LATENTS, layout="paged")
    expected, _ = run_steps(TorchPagedEngine(exported.folder, device="cpu"), None)
    engine, kernels = with_planned_kernels(exported)
    found, calls = run_steps(engine, kernels)
    for one, other in zip(found, expected, strict=True):
        error = np.linalg.norm((one - other).astype(np.float64)) / np.linalg.norm(other.astype(np.float64))
        assert error < TOLERANCES[DType.BFLOAT16.value]
    assert engine.read_pool("kv_pool_0").shape[0] == 1
    assert [(step["reshape_and_cache"], step["paged_attention"]) for step in calls] == [(1, 1)] * len(STEPS)


def test_the_gated_delta_rule_is_packed(artifacts: ArtifactCache) -> None:
    exported = artifacts.get("qwen3_next", "bfloat16", QWEN, layout="paged")
    engine, kernels = with_planned_kernels(exported)
    calls = run_steps(engine, kernels)[1]
    layers = exported.config.layer_types.count("gated_delta_net")
    assert [step["gated_delta_rule"] for step in calls] == [layers, 2 * layers, layers, layers]


def test_sizes_that_kernels_refuse_run_in_torch(artifacts: ArtifactCache) -> None:
    sizes = {**NEMOTRON, "head_dim": 10, "mamba_head_dim": 10, "ssm_state_size": 9}
    options = {"dtype": DType.FLOAT32, "layout": "paged", "kernels": "optional"}
    exported = artifacts.get("nemotron_h", "bfloat16", sizes, **options)
    expected, _ = run_steps(TorchPagedEngine(exported.folder, device="cpu"), None)
    engine, kernels = with_planned_kernels(exported)
    found, calls = run_steps(engine, kernels)
    assert not any({"update_ssm_state", "mamba2_conv_scan", "paged_attention"} & set(step) for step in calls)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4)
