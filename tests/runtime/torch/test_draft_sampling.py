"""Draft steps that sample, prepared on the CPU as for a GPU; the kernels are computed by their host reference."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="the torch engine needs torch")

from hybridge.runtime.engines.packed_inputs import PackedInputs
from hybridge.runtime.engines.torch.device import TorchDevice
from hybridge.runtime.engines.torch.kernels import KernelRunner
from hybridge.runtime.engines.torch.paged_engine import TorchPagedEngine
from hybridge.runtime.engines.torch.paged_result import TorchStepResult
from hybridge.runtime.engines.torch.paged_steps import PagedSteps
from hybridge.runtime.generation import Request
from hybridge.runtime.sampling import NO_SAMPLING, SamplingParams, TokenSampling
from hybridge.runtime.serving.loop import ServingLoop
from hybridge.runtime.serving.request import ServingRequest
from hybridge.runtime.serving.settings import ServingSettings
from hybridge.runtime.speculation import SpeculationSettings
from hybridge.trt_plugins.kernels.fused.sampling import SamplingProblem
from tests.runtime.serving.toy_loop import run_all
from tests.support.artifacts import ArtifactCache
from tests.support.effort import sample
from tests.support.kernel_calls import H200
from tests.support.sampling_reference import run_reference
from tests.support.thirds import Thirds

MOST, NEW = 3, 6

PARAMS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.4},
    {"temperature": 0.4, "logprobs": 2},
    {"repetition_penalty": 1.2, "frequency_penalty": 0.4, "logit_bias": {4: 3.0}},
    {"temperature": 0.5, "allowed_token_ids": [3, 4, 5, 64], "min_tokens": 3, "logprobs": 1},
]
MASKED: list[dict[str, Any]] = [{"temperature": 0.5, "allowed_tokens": Thirds}, {"allowed_tokens": Thirds}]


class SamplingKernels(KernelRunner):
    """The kernels of sampling on host memory."""

    def __init__(self) -> None:
        pass

    def launch(self, key, plan_of, inputs, outputs, packed=()) -> None:
        assert isinstance(key, SamplingProblem)
        addresses = ([tensor.data_ptr() for tensor in tensors] for tensors in (inputs, outputs))
        run_reference(plan_of(H200), _bytes_at, *addresses)


def _bytes_at(address: int, nbytes: int) -> np.ndarray:
    return np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(address))


class PreparedSteps(TorchPagedEngine):
    """Runs steps on the CPU as they are prepared for a GPU."""

    samples_in_steps = chooses_later = True

    def prepare_sampling(self) -> None:
        device = TorchDevice("cpu")
        device.kernels = SamplingKernels()
        self._steps = PagedSteps(device, self.limits, self._memory, self.config.vocab_size)

    def launch(self, inputs: PackedInputs, samplings: Mapping[int, TokenSampling] = NO_SAMPLING) -> TorchStepResult:
        self._check(inputs)
        inputs = self._deferring(inputs)
        return self._steps.launch(inputs, self.pools, self._program, self._states_of(inputs), samplings)


def answers(
    engine: TorchPagedEngine, speculation: SpeculationSettings | None, requests: Sequence[dict[str, Any]]
) -> list[Any]:
    """The generation of each of ``requests``, with prompts that repeat themselves, so that n-grams propose tokens."""
    loop = ServingLoop(engine, ServingSettings(memory_bytes=1 << 24, speculation=speculation, max_tokens=24), (), None)
    for seed, params in enumerate(requests):
        prompt = (5, 6, 7) * (2 + 5 * seed)
        loop.add(ServingRequest(Request(prompt, SamplingParams(seed=seed, ignore_eos=True, **params), NEW)))
    ended = [o.piece.generation for o in run_all(loop) if o.piece is not None and o.piece.generation is not None]
    assert len(ended) == len(requests)
    return sorted(ended, key=lambda each: len(each.prompt_token_ids))


@pytest.mark.parametrize("requests", [PARAMS, PARAMS[2:] + MASKED], ids=["plain", "masked"])
@pytest.mark.parametrize("family", sample(("nemotron_h", "qwen3"), on_push=("nemotron_h",)))
def test_tokens_are_those_of_the_host_and_no_logits_are_read(
    family: str, requests: list[dict[str, Any]], artifacts: ArtifactCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = artifacts.get(family, "float32", layout="paged").folder
    expected = answers(TorchPagedEngine(folder, device="cpu"), None, requests)
    engine = PreparedSteps(folder, device="cpu")
    engine.prepare_sampling()
    monkeypatch.setattr(TorchStepResult, "logits", _refuse)
    monkeypatch.setattr(TorchStepResult, "rows", _refuse)
    found = answers(engine, SpeculationSettings(MOST, adaptive=False, shortest=1), requests)
    # Steps of draft tokens alone, and with a prompt beside them.
    defers = bool(engine.config.recurrent_layers)
    if requests is PARAMS:
        assert bool(engine._steps.sampling_drafts) == defers and not engine.draft_steps
    else:  # which choose their tokens behind the step
        assert bool(engine.draft_steps) == defers and (defers or engine.decode_steps)
    assert any(shape.drafts for shape in engine.mixed_steps) == defers
    for params, one, other in zip(requests, found, expected, strict=True):
        assert one.token_ids == other.token_ids, params
        for own, host in zip(one.logprobs or (), other.logprobs or (), strict=True):
            assert [token for token, _ in own.top] == [token for token, _ in host.top]
            assert abs(own.logprob - host.logprob) < 1e-4


def _refuse(result: TorchStepResult, indices: object) -> None:
    raise AssertionError("logits were copied to the host")
