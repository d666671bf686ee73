"""Feeding of rows by the token that a captured graph has sampled before, on this machine's GPU."""

from __future__ import annotations

import numpy as np
import pytest

from hybridge.artifact.names import INPUT_IDS, SEQ_LENS, SLOT_MAPPING, STATE_INDICES
from hybridge.runtime.engines.tensorrt.cuda_memory import CudaMemory
from hybridge.runtime.engines.tensorrt.paged.row_feeding import RowFeeding
from hybridge.runtime.engines.tensorrt.step_sampling import StepSampling, workspace_bytes

pytestmark = pytest.mark.gpu
ROWS, VOCAB = 5, 1000
NAMES = {INPUT_IDS: np.int64, SEQ_LENS: np.int32, SLOT_MAPPING: np.int32, STATE_INDICES: np.int32}


def test_a_captured_step_is_fed_the_tokens_of_the_one_before() -> None:
    memory, rng = CudaMemory(), np.random.default_rng(3)
    workspace = memory.allocate(workspace_bytes(ROWS, VOCAB), "workspace")
    logits = memory.allocate(ROWS * VOCAB * 4, "logits")
    inputs = {name: memory.allocate(ROWS * np.dtype(kind).itemsize, name) for name, kind in NAMES.items()}
    addresses = {name: allocation.address for name, allocation in inputs.items()}
    sampling, feeding = StepSampling(memory, VOCAB, (ROWS,), workspace.address), RowFeeding(memory, ROWS + 2)
    feeding.prepare(ROWS)
    sampler = sampling.of(ROWS, {})
    assert sampler is not None

    def step() -> None:
        sampler.enqueue(logits.address)
        feeding.enqueue(ROWS, addresses)

    graph = None
    for _ in range(4):
        values = rng.standard_normal((ROWS, VOCAB)).astype(np.float32)
        values[3] = np.nan
        best = np.where(np.isfinite(values).all(1), values.argmax(1), -1)
        # Row 1 ends with its token, row 2 is padding, row 3 has no token.
        feeding.tables.fill(sampler.tokens, [(), (5, int(best[1])), (), (), (int(best[0]),)], range(5))
        sampling.of(ROWS, {})
        before = {name: np.arange(7, 7 + ROWS).astype(kind) for name, kind in NAMES.items()}
        before[SEQ_LENS][2] = 0
        memory.copy(logits.address, values.ctypes.data, values.nbytes)
        for name, array in before.items():
            memory.copy(addresses[name], array.ctypes.data, array.nbytes)
        memory.synchronize()
        if graph is None:
            step()
            memory.synchronize()
            graph = memory.capture(step)
            continue
        graph.launch()
        found = {name: np.empty_like(array) for name, array in before.items()}
        for name, array in found.items():
            memory.copy(array.ctypes.data, addresses[name], array.nbytes)
        memory.synchronize()
        assert sampler.fed_tokens == best.tolist()
        assert found[INPUT_IDS].tolist() == [best[0], 0, 9, 0, best[4]]
        assert found[SEQ_LENS].tolist() == [7, 0, 0, 0, 11]
        assert found[SLOT_MAPPING].tolist() == [7, -1, 9, -1, 11]
        assert found[STATE_INDICES].tolist() == [7, -1, 9, -1, 11]
    assert graph is not None
    graph.close()
    for allocation in (logits, workspace, *inputs.values()):
        allocation.free()
    sampling.free()
    feeding.free()
    memory.close()
