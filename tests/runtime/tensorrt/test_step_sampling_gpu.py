"""Samplers of the paged TensorRT engine on this machine's GPU, in a captured graph, against the host's sampling."""

from __future__ import annotations

import numpy as np
import pytest

from hybridge.runtime.engines.tensorrt.cuda_memory import CudaMemory
from hybridge.runtime.engines.tensorrt.paged.step_logits import StepLogits
from hybridge.runtime.engines.tensorrt.step_sampling import StepSampling, workspace_bytes
from hybridge.runtime.sampling import Sampler, SamplingParams, sample_rows
from tests.kernels.test_sampling_gpu import SETTINGS, logits_of, same

pytestmark = pytest.mark.gpu

ROWS = 4


@pytest.mark.parametrize("vocab", [33, 151_936])
def test_a_captured_step_samples_as_the_host(vocab: int) -> None:
    memory = CudaMemory()
    workspace = memory.allocate(workspace_bytes(ROWS, vocab), "workspace")
    sampling = StepSampling(memory, vocab, (1, ROWS), workspace.address)
    device = StepLogits(memory, ROWS, vocab)
    logits = logits_of("normal", ROWS, vocab)
    memory.copy(device.address, logits.ctypes.data, logits.nbytes)
    memory.synchronize()
    graphs = {}
    for begin in range(0, len(SETTINGS), ROWS):
        samplers = []
        for seed, settings in enumerate(SETTINGS[begin : begin + ROWS]):
            allowed = settings.get("allowed_token_ids")
            given = (
                settings if allowed is None else {**settings, "allowed_token_ids": [t for t in allowed if t < vocab]}
            )
            samplers.append(Sampler(SamplingParams(temperature=0.8, seed=seed, **given), [1, 2, 3]))
        draws = {row: sampler.draw(vocab) for row, sampler in enumerate(samplers)}
        sampler = sampling.of(len(draws), draws)
        assert sampler is not None
        key = sampler.lists, len(draws) > 1
        if key not in graphs:
            sampler.enqueue(device.address)
            memory.synchronize()
            graphs[key] = memory.capture(lambda s=sampler: s.enqueue(device.address))  # type: ignore[misc]
        graphs[key].launch()
        memory.synchronize()
        found = sampler.sampled(draws)
        expected = sample_rows(list(draws.values()), logits[: len(draws)])
        assert all(same(found.get(row), each) for row, each in enumerate(expected))
    np.testing.assert_array_equal(device.read(np.array([3, 1])), logits[[3, 1]])
    for graph in graphs.values():
        graph.close()
    for owner in (sampling, device, workspace):
        owner.free()
    memory.close()
