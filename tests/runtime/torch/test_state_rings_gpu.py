"""Decode steps over states with rings on a GPU, recorded and launched ahead."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="the torch engine needs torch")

import numpy as np
import torch

from hybridge.runtime.engines.torch.device import TorchDevice
from hybridge.runtime.engines.torch.paged_engine import TorchPagedEngine
from hybridge.runtime.engines.torch.state_rings import StateRings
from hybridge.runtime.llm import LLM
from hybridge.runtime.serving.settings import ServingSettings
from hybridge.trt_plugins.specs.ring import RING
from tests.runtime.torch.test_state_rings import ringed_engine, run_steps
from tests.support.artifacts import ArtifactCache

pytestmark = pytest.mark.gpu

# As of float32 steps on a GPU, whose products use TF32 nowhere.
TOLERANCE = 1e-4


@pytest.mark.parametrize("family", ["nemotron_h", "qwen3_next", "kimi_linear"])
def test_recorded_steps_are_those_of_the_cpu(family: str, artifacts: ArtifactCache) -> None:
    folder = artifacts.get(family, "float32", layout="paged").folder
    found, expected = run_steps(ringed_engine(folder, "cuda")), run_steps(TorchPagedEngine(folder, "cpu"))
    for values, others in zip(found, expected, strict=True):
        for one, other in zip(values, others, strict=True):
            assert np.linalg.norm(one - other) <= TOLERANCE * max(np.linalg.norm(other), 1e-6)


def test_one_kernel_counts_the_tokens() -> None:
    device = TorchDevice("cuda")
    rings = StateRings(device, (), 9)
    before = [3, RING - 1, 0, 7, 5, 0, 0, 0, 0]
    with device.active():  # the lengths are cleared in this stream
        rings.lengths.copy_(torch.tensor(before))
        rings.count(torch.tensor([0, 1, -1, 4, 5], dtype=torch.int32, device="cuda"))
        assert rings.lengths.tolist() == [4, 0, 0, 7, 6, 1, 0, 0, 0]


def test_launched_ahead(artifacts: ArtifactCache) -> None:
    exported = artifacts.get("nemotron_h", "float32", layout="paged")
    prompts = [np.random.default_rng(n).integers(0, exported.config.vocab_size, n).tolist() for n in (3, 11, 30)]
    answers = []
    for rows in (None, 1):
        with LLM(exported.folder, engine="torch", serving=ServingSettings(ring_rows=rows)) as llm:
            # The second time the prompts are in the prefix cache.
            answers += [[each.token_ids for each in llm.generate(prompts, max_new_tokens=40)] for _ in range(2)]
    assert answers[0] == answers[1] == answers[2] == answers[3]
