"""Steps with candidate tokens on the CPU: against the file as it is, padded as on a GPU, and their kernel calls."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("torch", reason="the torch engine needs torch")

import torch

from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import EngineError
from hybridge.runtime.engines.candidates import read_slots
from hybridge.runtime.engines.onnxruntime.paged_portable import PortablePagedEngine
from hybridge.runtime.engines.paged import PackedInputs
from hybridge.runtime.engines.torch.fusion import Phase
from hybridge.runtime.engines.torch.packed_buffers import StepSize
from hybridge.runtime.engines.torch.packed_step import PackedStep, StepShape
from hybridge.runtime.engines.torch.paged_engine import TorchPagedEngine
from hybridge.runtime.engines.torch.step_rows import StepRows
from hybridge.runtime.engines.torch.step_shapes import candidate_shape
from tests.runtime.onnxruntime.test_candidates import BLOCK_SIZE, CASES, COLUMNS, SIZES, step_of
from tests.runtime.torch.test_kernel_calls import QWEN
from tests.runtime.torch.test_paged_kernel_calls import PAGED, with_planned_kernels
from tests.support.artifacts import ArtifactCache, Exported

FAMILIES = ("nemotron_h", "qwen3_next")
FEW = [case for case, counts in CASES.items() if max(counts) <= COLUMNS]


@pytest.fixture(scope="module", params=FAMILIES)
def exported(request: pytest.FixtureRequest, artifacts: ArtifactCache) -> Exported:
    return artifacts.get(request.param, "float32", layout="paged", speculative_tokens=COLUMNS - 1, max_batch_size=4)


def states_of(engine: TorchPagedEngine | PortablePagedEngine) -> dict[str, np.ndarray]:
    return {spec.name: engine.read_pool(spec.name) for spec in engine.config.bindings.states}


def filled(engine: TorchPagedEngine | PortablePagedEngine) -> None:
    """The same random states in the pools of every engine."""
    engine.allocate_pools(SIZES)
    engine.fill_pools(0.0)
    rng = np.random.default_rng(1)
    for spec in engine.config.bindings.states:
        if spec.grows:
            continue
        shape = spec.resolve(num_slots=SIZES.num_slots)
        values = rng.standard_normal(shape).astype(np.float32)
        if isinstance(engine, TorchPagedEngine):
            pool = engine.pools.tensors[spec.name]
            pool[:-1] = torch.from_numpy(values).to(pool.dtype)
        else:
            engine.pools.view(spec.name)[...] = values


@pytest.mark.parametrize("case", CASES)
def test_the_engine_agrees_with_the_file_as_it_is(case: str, exported: Exported) -> None:
    engines = TorchPagedEngine(exported.folder, device="cpu"), PortablePagedEngine(exported.folder, threads=1)
    found = []
    for engine in engines:
        filled(engine)
        logits = [
            engine.step(step_of(CASES[case], COLUMNS, padding=1, seed=seed))[: sum(CASES[case])].copy()
            for seed in (0, 1)
        ]
        found.append([*logits, *states_of(engine).values()])
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("counts", [[1, 3, 7], [1, 1], [4]], ids=str)
def test_steps_without_candidates_replace_their_slots(counts: list[int], exported: Exported) -> None:
    step = step_of(counts, COLUMNS, padding=0, seed=5)
    plain = replace(step, state_indices=read_slots(step), num_accepted_tokens=None)
    found = []
    for engine in (TorchPagedEngine(exported.folder, device="cpu"), PortablePagedEngine(exported.folder, threads=1)):
        filled(engine)
        found.append([engine.step(plain).copy(), *states_of(engine).values()])
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("case", FEW)
def test_a_padded_step_changes_nothing_else(case: str, exported: Exported) -> None:
    engine, found = TorchPagedEngine(exported.folder, device="cpu"), []
    step = step_of(CASES[case], COLUMNS, padding=0, seed=3)
    for padded in (False, True):
        filled(engine)
        engine.pools.fill(0.25)
        if padded:
            shape = StepShape(StepSize(14, 4, 5, 14), 0, COLUMNS, COLUMNS - 1)
            repeated = PackedStep(engine.device, engine._model.program(Phase.CANDIDATES), engine.pools, shape)
            result = repeated.launch(step)
        else:
            result = engine.launch(step)
        assert result.best_tokens() == result.all_logits().argmax(1).tolist()
        found.append([result.all_logits(), result.logits(0), *states_of(engine).values()])
    for plain, padded in zip(*found, strict=True):
        np.testing.assert_allclose(padded, plain, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", [DType.BFLOAT16, DType.FLOAT32])
def test_candidates_run_their_kernels_in_place(family: str, dtype: DType, artifacts: ArtifactCache) -> None:
    sizes = PAGED if family == "nemotron_h" else QWEN
    options = {"dtype": dtype, "layout": "paged", "speculative_tokens": COLUMNS - 1}
    exported = artifacts.get(family, "bfloat16", sizes, **options)
    engine, kernels = with_planned_kernels(exported)
    other, layers = TorchPagedEngine(exported.folder, device="cpu"), len(exported.config.recurrent_layers)
    scan = "update_ssm_state" if family == "nemotron_h" else "gated_delta_rule"
    for counts in CASES.values():
        step, found = step_of(counts, COLUMNS, padding=0, seed=2), []
        for each in (engine, other):
            filled(each)
            kernels.calls.clear()
            kernels.launched.clear()
            found.append(each.step(step).astype(np.float64))
            if each is engine:
                assert kernels.calls[scan] == layers == kernels.calls["causal_conv1d"]
                assert kernels.launched["causal_conv1d_candidates"] == layers
        error = np.linalg.norm(found[0] - found[1]) / np.linalg.norm(found[1])
        assert error < (1e-5 if dtype is DType.FLOAT32 else 3e-2)


def test_sizes_of_recorded_steps() -> None:
    def size(counts: list[int], most: int = 64) -> tuple[int, int]:
        found = candidate_shape(step_of(counts, COLUMNS, padding=0, seed=0), COLUMNS - 1, most, BLOCK_SIZE).size
        assert found.logits == found.tokens
        return found.rows, found.tokens

    assert [size([1]), size([4]), size([4, 1]), size([4, 4, 4])] == [(1, 4), (1, 4), (2, 8), (4, 16)]
    assert size([2, 1, 1], most=3) == (3, 8)


def test_what_runs_row_by_row_is_not_recorded() -> None:
    rows = StepRows(torch.zeros(4, dtype=torch.int32), None, None, 0, COLUMNS)
    assert rows.rows == 3
    with pytest.raises(EngineError, match="kernels for every operator of a recorded step"):
        list(rows.others())


def test_candidates_that_the_artifact_has_no_slots_for_are_refused(artifacts: ArtifactCache) -> None:
    engine = TorchPagedEngine(artifacts.get("nemotron_h", "float32", layout="paged").folder, device="cpu")
    engine.allocate_pools(SIZES)
    step: PackedInputs = step_of([2], COLUMNS, padding=0, seed=7)
    with pytest.raises(EngineError, match="an artifact exported with `speculative_tokens` alone"):
        engine.step(replace(step, state_indices=read_slots(step)))
