"""Tokens sampled behind decode steps of the dense TensorRT engine; the kernels are computed by their host reference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hybridge.runtime.engines.dense_as_paged import DenseAsPaged
from hybridge.runtime.generation import Request
from hybridge.runtime.sampling import SamplingParams
from hybridge.runtime.serving.loop import ServingLoop
from hybridge.runtime.serving.request import ServingRequest
from hybridge.runtime.serving.settings import ServingSettings
from tests.runtime.onnxruntime.hand_made_plan import VOCAB
from tests.runtime.serving.toy_loop import run_all

pytest.importorskip("tensorrt_rtx", reason="needs the tensorrt-rtx package")

from hybridge.runtime.engines.tensorrt import step_sampling
from hybridge.runtime.engines.tensorrt.step_io import LogitsStage
from tests.runtime.tensorrt.built import SMALL, BuiltArtifacts, open_engine
from tests.runtime.tensorrt.test_paged_sampling import no_kernels

PARAMS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.8},
    {"temperature": 1.2, "top_k": 5, "top_p": 0.9},
    {"temperature": 1.0, "min_p": 0.05, "repetition_penalty": 1.3, "logit_bias": {4: 2.0}},
    {"temperature": 0.9, "logprobs": 3},
    {"allowed_token_ids": [1, VOCAB // 2, VOCAB - 1], "frequency_penalty": 0.5},
]


class Downloads:
    """``LogitsStage.read_now``, counted."""

    def __init__(self) -> None:
        self.count, self._read = 0, LogitsStage.read_now

    def __get__(self, stage: LogitsStage, kind: type) -> Any:
        def read_now(batch: int) -> np.ndarray:
            self.count += 1
            return self._read(stage, batch)

        return read_now


def served(engine: DenseAsPaged, new: Sequence[int]) -> list[tuple[tuple[int, ...], Any]]:
    """Tokens and log-probabilities of the answers to PARAMS, of ``new`` tokens each."""
    loop = ServingLoop(engine, ServingSettings(memory_bytes=1 << 20), (), None)
    rng = np.random.default_rng(6)
    for seed, (params, count) in enumerate(zip(PARAMS, new, strict=True)):
        prompt = tuple(rng.integers(0, VOCAB, 1 + 2 * (seed % 3)).tolist())
        loop.add(ServingRequest(Request(prompt, SamplingParams(seed=seed, ignore_eos=True, **params), count)))
    ends = sorted(
        (o.request_id, o.piece.generation) for o in run_all(loop) if o.piece is not None and o.piece.generation
    )
    return [(generation.token_ids, generation.logprobs) for _, generation in ends]


@pytest.mark.parametrize("all_logits", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_tokens_are_those_of_the_host(
    all_logits: bool, built_artifacts: BuiltArtifacts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows come and go, so that the order of a step is not that of the batch."""
    artifact, new = built_artifacts.get(replace(SMALL, all_logits=all_logits)), (9, 4, 12, 7, 10, 8)
    found = []
    for kernels in (True, False):
        opened, downloads = open_engine(artifact, monkeypatch), Downloads()
        with monkeypatch.context() as patch:
            patch.setattr(LogitsStage, "read_now", downloads)
            if not kernels:
                patch.setattr(step_sampling, "DeviceSampling", no_kernels)
            engine = DenseAsPaged(opened.engine)
            found.append(served(engine, new))
        graphs = sum(graph.launches for graph in opened.memory.graphs)
        # Logits come to the host only in steps that a prompt shares.
        assert graphs > 5 and (not kernels or downloads.count < len(PARAMS)), (graphs, downloads.count)
        engine.close()
        opened.close()
    for (tokens, logprobs), (expected, others) in zip(*found, strict=True):
        assert tokens == expected and (logprobs is None) == (others is None)
        for one, other in zip(logprobs or (), others or (), strict=True):
            assert [token for token, _ in one.top] == [token for token, _ in other.top]
            assert abs(one.logprob - other.logprob) < 1e-5
