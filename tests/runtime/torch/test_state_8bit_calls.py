"""Steps over states of 8 bits with the calls that a GPU's kernels get, planned for an H200 and computed by torch."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch", reason="the torch engine needs torch")

import torch

from hybridge.artifact.dtypes import DType
from hybridge.runtime.engines.torch.engine import TorchEngine
from hybridge.runtime.engines.torch.ops.state_8bit import Packed8BitCall, Speculative8BitCall
from hybridge.runtime.engines.torch.paged_engine import TorchPagedEngine
from hybridge.runtime.engines.torch.step_rows import StepRows
from hybridge.trt_plugins import torch_ops
from hybridge.trt_plugins.catalog import spec_of
from tests.runtime.torch.planned_kernels import PlannedKernels
from tests.runtime.torch.test_dense_kernel_calls import decoded
from tests.runtime.torch.test_dense_kernel_calls import with_planned_kernels as dense_engine
from tests.runtime.torch.test_kernel_calls import NEMOTRON, QWEN
from tests.runtime.torch.test_paged_kernel_calls import run_steps
from tests.runtime.torch.test_paged_kernel_calls import with_planned_kernels as paged_engine
from tests.support.artifacts import ArtifactCache, Exported

MODELS = {
    "nemotron_h": ({**NEMOTRON, "hybrid_override_pattern": "M*"}, "update_ssm_state"),
    "qwen3_next": ({**QWEN, "num_hidden_layers": 2}, "gated_delta_rule"),
}
HEADS, HEAD_DIM, STATE, COLUMNS = 4, 16, 24, 3
families = pytest.mark.parametrize("family", list(MODELS))


def exported(artifacts: ArtifactCache, family: str, layout: str) -> Exported:
    options = {"dtype": DType.FLOAT32, "state_dtype": DType.INT8, "layout": layout, "max_seq_len": 96}
    return artifacts.get(family, "bfloat16", MODELS[family][0], **options)


def check_close(found: list[np.ndarray], expected: list[np.ndarray]) -> None:
    """Few numbers of a state may be rounded to the other side of a half: a unit of its row, or an eighth of e4m3."""
    for one, other in zip(found, expected, strict=True):
        one, other = (each.astype(np.float64) for each in (one, other))
        off, most = np.abs(one - other), np.abs(other).max()
        assert off.max() <= most / 7
        assert np.mean(off > 1e-3 * (np.abs(other) + most)) < 1e-2


@pytest.mark.slow
@families
def test_packed_steps_read_states_as_they_are_stored(family: str, artifacts: ArtifactCache) -> None:
    folder, op = exported(artifacts, family, "paged"), MODELS[family][1]
    expected, _ = run_steps(TorchPagedEngine(folder.folder, device="cpu"), None)
    engine, kernels = paged_engine(folder)
    found, calls = run_steps(engine, kernels)
    check_close(found, expected)
    # Longer rows first, rows of one token first, such rows alone.
    layers = len(folder.config.state_scales)
    counts = [(step.get(op, 0) / layers, step.get(f"{op}_8bit", 0) / layers) for step in calls]
    assert counts == [(1, 0), (1, 1), (0, 1), (1, 0)]


@pytest.mark.slow
@families
def test_dense_rows_do_too(family: str, artifacts: ArtifactCache) -> None:
    folder, op = exported(artifacts, family, "dense"), MODELS[family][1]
    expected = decoded(TorchEngine(folder.folder, device="cpu"), 40, 3)
    engine, kernels = dense_engine(folder)
    check_close(decoded(engine, 40, 3), expected)
    layers = len(folder.config.state_scales)
    assert (kernels.calls[op], kernels.calls[f"{op}_8bit"]) == (layers, 3 * layers)


def inputs_of(version: int, dtype: torch.dtype, counts: list[int], slots: torch.Tensor) -> list[torch.Tensor]:
    """The operator's inputs for rows of ``counts`` tokens; every slot has random bytes and a scale."""
    make = torch.Generator().manual_seed(0)
    tokens, pool = sum(counts), int(slots.max()) + 3

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=make)

    size = (pool, HEADS, HEAD_DIM, STATE)
    magnitudes = torch.randint(0, 100, size, generator=make)
    state = (magnitudes + 128 * torch.randint(0, 2, size, generator=make)).to(torch.uint8).view(dtype)
    bounds = torch.tensor([0, *np.cumsum(counts)], dtype=torch.int32)
    x, B, C = normal(tokens, HEADS, HEAD_DIM), normal(tokens, 2, STATE), normal(tokens, 2, STATE)
    tensors = [x, -torch.rand(HEADS, generator=make), B, C, normal(HEADS), normal(tokens, HEADS), normal(HEADS), state]
    tensors += [torch.rand(pool, HEADS, HEAD_DIM, generator=make) + 0.1, bounds, slots]
    return tensors if version == 2 else [*tensors, torch.tensor([2, 1, 0, 3, 1, 2], dtype=torch.int32)]


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8], ids=str)
def test_only_slots_that_are_written_change(version: int, dtype: torch.dtype) -> None:
    """Rows of one token, none, a few and more than slots, and a padding row, as by the operator's torch form."""
    counts = [1, 0, 1, 5, 2, 2]
    slots = torch.randperm(6 * COLUMNS, generator=torch.Generator().manual_seed(1)).int().view(6, COLUMNS)
    slots[2] = -1
    slots[4, 1] = -1
    given = inputs_of(version, dtype, counts, slots if version == 3 else slots[:, 0].contiguous())
    spec = spec_of("update_ssm_state_8bit", version)
    torch_ops.register()
    operator = torch.ops.trt_edgellm.update_ssm_state_8bit
    attributes = spec.complete_attributes({})
    expected = (operator.packed if version == 2 else operator.speculative)(*given, *attributes.values())
    kernels, in_place = PlannedKernels(), (False, True, True)
    rows = StepRows(given[9], tuple(counts), None, 3 if version == 2 else 0, 5)
    call = [*given[:7], given[7].clone(), given[8].clone(), rows, *given[10:]]
    if version == 2:
        found = Packed8BitCall(spec, attributes, kernels, in_place)(*call)
    else:
        found = Speculative8BitCall(spec, attributes, kernels, in_place, False)(*call)
    assert kernels.calls["update_ssm_state"] == 1 and kernels.calls["update_ssm_state_8bit"] == (version == 2)
    own = torch.tensor([True] * counts[0] + [False] * counts[2] + [True] * sum(counts[3:]))
    torch.testing.assert_close(found[0][own], expected[0][own], rtol=1e-5, atol=1e-4)
    changed = (expected[1] != given[7]).flatten(1).any(1)
    assert 0 < int(changed.sum()) < len(changed) - 1
    rest = ~changed
    rest[-1] = False  # the last slot is of no sequence
    for one, other, most in ((found[1], expected[1], 1.0), (found[2], expected[2], 0.0)):
        torch.testing.assert_close(one[changed].float(), other[changed].float(), rtol=1e-5, atol=most)
        assert torch.equal(one[rest], other[rest])
