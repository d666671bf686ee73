"""Tokens sampled behind a step of the paged TensorRT engine; the kernels are computed by their host reference."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hybridge.artifact.errors import UnsupportedError
from hybridge.runtime.generation import Request
from hybridge.runtime.sampling import Sampler, SamplingParams
from hybridge.runtime.serving.loop import ServingLoop
from hybridge.runtime.serving.request import Output, ServingRequest
from hybridge.runtime.serving.settings import ServingSettings
from hybridge.runtime.speculation import SpeculationSettings
from tests.support.artifacts import ArtifactCache
from tests.support.thirds import VOCAB, Thirds

pytest.importorskip("tensorrt_rtx", reason="needs the tensorrt-rtx package")

from hybridge.runtime.engines.tensorrt import step_sampling
from hybridge.runtime.engines.tensorrt.paged.engine import TensorRTPagedEngine
from hybridge.runtime.engines.tensorrt.paged.step_logits import StepLogits
from hybridge.runtime.engines.tensorrt.step_sampling import StepSampling, workspace_bytes
from tests.runtime.tensorrt.fake_memory import FakeMemory
from tests.runtime.tensorrt.paged_double import OpenedDouble, ParsedEngine, open_double

NEW = 6
PARAMS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.8},
    {"temperature": 1.2, "top_k": 5, "top_p": 0.9},
    {"temperature": 1.0, "min_p": 0.05, "repetition_penalty": 1.3, "logit_bias": {4: 2.0}},
    {"temperature": 0.9, "logprobs": 3},
    {"allowed_tokens": Thirds, "frequency_penalty": 0.5},
    {"temperature": 1.0, "allowed_token_ids": [1, 50, 96], "logprobs": 0},
]


@pytest.fixture(scope="module")
def parsed(artifacts: ArtifactCache, tmp_path_factory: pytest.TempPathFactory) -> ParsedEngine:
    sizes = {"layout": "paged", "max_batch_size": 3, "max_seq_len": 64}
    folder = artifacts.get("llama", "float32", {"num_hidden_layers": 1}, **sizes).folder
    return ParsedEngine(folder, tmp_path_factory.mktemp("engine"), plugins="off")


def served(
    opened: OpenedDouble, requests: Sequence[dict[str, Any]], speculation: SpeculationSettings | None = None
) -> dict[int, Any]:
    """The answer of each request, or its error."""
    settings = ServingSettings(memory_bytes=1 << 20, speculation=speculation)
    loop = ServingLoop(opened.engine, settings, (), None)
    rng, ids = np.random.default_rng(6), []
    for seed, params in enumerate(requests):
        prompt = tuple(rng.integers(0, VOCAB, 1 + 3 * (seed % 3)).tolist())
        request = Request(prompt, SamplingParams(seed=seed, ignore_eos=True, **params), NEW)
        ids.append(loop.add(ServingRequest(request)))
    outputs: list[Output] = []
    while loop.busy:
        outputs += loop.step()
    ends: dict[int, Any] = {o.request_id: o.piece.generation for o in outputs if o.piece and o.piece.generation}
    ends |= {o.request_id: str(o.error) for o in outputs if o.error}
    assert set(ends) == set(ids)
    return ends


def refuse(logits: StepLogits, rows: np.ndarray) -> np.ndarray:
    raise AssertionError("logits were copied to the host")


def no_kernels(*arguments: object) -> None:
    raise UnsupportedError("a vocabulary without kernels")


def test_tokens_are_those_of_the_host_and_logits_stay_on_the_device(
    parsed: ParsedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = open_double(parsed, monkeypatch)
    with monkeypatch.context() as patch:
        patch.setattr(StepLogits, "read", refuse)
        found = served(opened, PARAMS * 2)
    # Every number of rows is captured, with lists of likely tokens and without; and without sampling, beside masks.
    captured = opened.engine.steps.captured
    assert {key.samples for key in captured} == {False, True}
    assert {key.lists for key in captured} == {False, True} and any(step.is_replayed for step, _ in captured.values())
    opened.close()
    monkeypatch.setattr(step_sampling, "DeviceSampling", no_kernels)
    opened = open_double(parsed, monkeypatch)
    expected = served(opened, PARAMS * 2)
    opened.close()
    for id_, answer in expected.items():
        assert found[id_].token_ids == answer.token_ids, PARAMS[id_ % len(PARAMS)]
        assert (found[id_].logprobs is None) == (answer.logprobs is None)
        for one, other in zip(found[id_].logprobs or (), answer.logprobs or (), strict=True):
            assert [token for token, _ in one.top] == [token for token, _ in other.top]
            assert abs(one.logprob - other.logprob) < 1e-5


def test_steps_launched_ahead_give_the_tokens_of_single_steps(
    parsed: ParsedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = [PARAMS[0], PARAMS[1], PARAMS[2]]
    opened = open_double(parsed, monkeypatch)
    found = served(opened, params)
    assert {key.turn for key in opened.engine.steps.captured if key.fed} == {0, 1}
    opened.close()
    monkeypatch.setattr(TensorRTPagedEngine, "chains_steps", False)
    opened = open_double(parsed, monkeypatch)
    expected = served(opened, params)
    assert not any(key.fed for key in opened.engine.steps.captured)
    assert {id_: answer.token_ids for id_, answer in found.items()} == {
        id_: answer.token_ids for id_, answer in expected.items()
    }
    opened.close()


def test_the_host_samples_what_kernels_cannot(parsed: ParsedEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processors of the caller, and errors, beside a row that is sampled on the device."""
    opened = open_double(parsed, monkeypatch)
    seventh = {"logits_processors": lambda tokens, logits: np.where(np.arange(VOCAB) == 7, logits, -np.inf)}
    found = served(opened, [seventh, {"allowed_tokens": Nothing}, {"temperature": 1.0}])
    assert found[0].token_ids == (7,) * NEW and len(found[2].token_ids) == NEW
    assert "expected a token that can be sampled, found none" in found[1]
    opened.close()


class Nothing(Thirds):
    """Allows no token."""

    def mask(self) -> np.ndarray:
        return np.zeros(-(-VOCAB // 32), np.uint32)


def test_samplers_of_different_sizes_share_their_tables() -> None:
    memory = FakeMemory()
    logits, workspace = (
        memory.allocate(2 * VOCAB * 4, "logits"),
        memory.allocate(workspace_bytes(2, VOCAB), "workspace"),
    )
    logits.array[...] = 0
    sampling = StepSampling(memory, VOCAB, (1, 2), workspace.address)
    draws = [Sampler(SamplingParams(temperature=1.0, allowed_token_ids=[token])).draw(VOCAB) for token in (3, 4)]
    for rows, token in ((2, 3), (1, 4), (2, 3)):
        sampler = sampling.of(rows, {0: draws[token - 3]})
        assert sampler is not None
        sampler.enqueue(logits.address)
        memory.synchronize()
        assert sampler.sampled({0: draws[token - 3]}) == {0: (token, None)}
    assert sampling.of(3, {}) is None


@pytest.mark.slow
def test_tokens_after_draft_tokens_are_sampled_on_the_device(
    artifacts: ArtifactCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = {"layout": "paged", "max_batch_size": 3, "max_seq_len": 64}
    folder = artifacts.get("llama", "float32", {"num_hidden_layers": 1}, **sizes).folder
    parsed = ParsedEngine(folder, tmp_path, plugins="off", speculative_tokens=3)
    params = [
        *({}, {"temperature": 0.3}, {"temperature": 0.5, "top_k": 3}, {"temperature": 0.4, "logprobs": 2}),
        *({"repetition_penalty": 1.2}, {"temperature": 0.4, "frequency_penalty": 0.4, "logit_bias": {4: 3.0}}),
        *({"allowed_tokens": Thirds}, {"temperature": 0.5, "allowed_tokens": Thirds, "logprobs": 1}),
        {"allowed_token_ids": [3, 4, 5], "min_tokens": 3},
    ]
    opened = open_double(parsed, monkeypatch)
    expected = served(opened, params)
    monkeypatch.setattr(StepLogits, "read", refuse)
    found = served(opened, params, SpeculationSettings(3, adaptive=False, shortest=1))
    assert any(size.tokens > size.rows for size, *_ in opened.engine.steps.captured)
    for id_, answer in expected.items():
        assert found[id_].token_ids == answer.token_ids
        pairs = zip(found[id_].logprobs or (), answer.logprobs or (), strict=True)
        assert all(abs(one.logprob - other.logprob) < 1e-4 for one, other in pairs)
    opened.close()
