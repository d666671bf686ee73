"""Chains of prepared steps on the CPU, for each kind of state; a double stands for the kernel that feeds tokens."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="the torch engine needs torch")

import torch

from hybridge.artifact.errors import EngineError
from hybridge.runtime.engines.chained_steps import Feeding, PreparedNext
from hybridge.runtime.engines.packed_inputs import PackedInputs
from hybridge.runtime.engines.step_result import StepResult
from hybridge.runtime.engines.torch.chained_step import ChainedStep
from hybridge.runtime.engines.torch.kernels import KernelRunner
from hybridge.runtime.engines.torch.paged_engine import TorchPagedEngine
from hybridge.runtime.engines.torch.paged_result import TorchStepResult
from hybridge.runtime.generation import Request
from hybridge.runtime.prefix_cache.settings import PrefixCacheSettings
from hybridge.runtime.sampling import NO_SAMPLING, SamplingParams, TokenSampling
from hybridge.runtime.serving.loop import ServingLoop
from hybridge.runtime.serving.request import ServingRequest
from hybridge.runtime.serving.settings import ServingSettings
from hybridge.trt_plugins.kernels.fused.token_feeding import FeedingProblem, plan
from tests.runtime.serving.toy_loop import answers, run_all
from tests.runtime.torch.test_draft_sampling import SamplingKernels
from tests.support.announced import Announced, announced_thirds
from tests.support.artifacts import ArtifactCache
from tests.support.effort import sample
from tests.support.kernel_calls import H200
from tests.support.thirds import VOCAB, Thirds


class FeedTokens(KernelRunner):
    """``feed_tokens`` in NumPy."""

    def __init__(self) -> None:
        self.ended = self.left = 0

    def launch(self, key, plan_of, inputs, outputs, packed=()) -> None:
        assert isinstance(key, FeedingProblem) and plan_of(H200) is not None and plan(key, H200).launches
        (address, stride), stops, sources = inputs[0].tolist(), inputs[1].tolist(), inputs[2].tolist()
        ids, lengths, slots, states = outputs
        assert [each.dtype for each in outputs] == [torch.int64, torch.int32, torch.int32, torch.int32]
        for row in range(key.rows):
            if not lengths[row] or sources[row] < 0:
                self.left += lengths[row] > 0
                continue
            token = ctypes.c_int32.from_address(address + sources[row] * stride).value
            ids[row] = token
            if token in (-1, *stops[row]):
                self.ended += 1
                ids[row], lengths[row], slots[row], states[row] = 0, 0, -1, -1


class PreparedSteps(TorchPagedEngine):
    """Runs steps on the CPU as they are prepared for a GPU, where each is finished when it has been launched.

    The host samples, so that no step follows one that samples."""

    chains_steps = runs_ahead = True

    def launch(self, inputs: PackedInputs, samplings: Mapping[int, TokenSampling] = NO_SAMPLING) -> TorchStepResult:
        self._check(inputs)
        result = self._steps.launch(inputs, self.pools, self._program, None)
        if samplings:
            result.lose_tokens()
        return result

    def launch_next(self, result: StepResult, inputs: PackedInputs, feeding: Feeding) -> TorchStepResult | None:
        return None if feeding.samplings else super().launch_next(result, inputs, feeding)


@pytest.mark.parametrize("family", sample(["nemotron_h", "qwen3_next", "mamba2", "qwen3"], ["nemotron_h"]))
def test_answers_and_states_are_those_of_single_steps(family: str, artifacts: ArtifactCache) -> None:
    exported = artifacts.get(family, "float32", layout="paged", max_batch_size=6, max_seq_len=96)
    rng = np.random.default_rng(4)
    prompts = [rng.integers(0, exported.config.vocab_size, 3 + row).tolist() for row in range(6)]
    eos = tuple(range(0, exported.config.vocab_size, 9))  # so many that answers end early
    found, kernels = [], FeedTokens()
    for kind in (PreparedSteps, TorchPagedEngine):
        engine = kind(exported.folder, device="cpu")
        engine.device.kernels = kernels
        settings = ServingSettings(memory_bytes=1 << 26, prefix_cache=PrefixCacheSettings(decode_interval=1 << 20))
        loop = ServingLoop(engine, settings, eos, None)
        turns, own = [], prompts
        for turn in range(2):
            for row, prompt in enumerate(own):
                params = SamplingParams(ignore_eos=row == 5)
                loop.add(ServingRequest(Request(tuple(prompt), params, 30)))
            outputs = run_all(loop)
            ended = [o.piece.generation for o in outputs if o.piece is not None and o.piece.generation is not None]
            ended.sort(key=lambda each: each.prompt_token_ids)
            turns += [(each.token_ids, each.cached_tokens) for each in ended]
            # The next turn begins with the states that the answers have left.
            own = [[*each.prompt_token_ids, *each.token_ids, turn] for each in ended]
        found.append(turns)
        engine.device.kernels = None
    assert found[0] == found[1] and kernels.ended


class AllKernels(FeedTokens, SamplingKernels):
    """The kernels of a step whose tokens are sampled behind it and fed to the next one."""

    def launch(self, key, *given, **named) -> None:
        kind = FeedTokens if isinstance(key, FeedingProblem) else SamplingKernels
        kind.launch(self, key, *given, **named)


class ChoosingSteps(PreparedSteps):
    """Their tokens are sampled behind them, as masks need it."""

    chooses_later = samples_in_steps = True
    chained = joined = 0

    def launch(self, inputs: PackedInputs, samplings: Mapping[int, TokenSampling] = NO_SAMPLING) -> TorchStepResult:
        self._check(inputs)
        return self._steps.launch(inputs, self.pools, self._program, None, samplings)

    def launch_next(self, result: StepResult, inputs: PackedInputs, feeding: Feeding) -> TorchStepResult | None:
        found = super().launch_next(result, inputs, feeding)
        self.chained += found is not None
        return found

    def prepare_next(self, *given) -> PreparedNext | None:
        prepared = super().prepare_next(*given)
        return None if prepared is None else PreparedNext(prepared.choose, lambda: self.joining(prepared.launch))

    def joining(self, launch: Callable[[], StepResult]) -> StepResult:
        """A step launched right after the choice of the tokens before it."""
        self.joined += 1
        return launch()


class NothingLeft(Thirds):
    """No token at all from the third one on."""

    tokens = 0

    def mask(self) -> np.ndarray:
        return super().mask() * np.uint32(self.tokens < 2)

    def accept(self, token: int) -> None:
        super().accept(token)
        self.tokens += 1


class Broken(NothingLeft):
    """Its fifth mask fails."""

    def mask(self) -> np.ndarray:
        if self.tokens == 4:
            raise ValueError("no mask")
        return Thirds.mask(self)


@pytest.mark.parametrize("announced", [False, True])
def test_steps_that_wait_for_masks_are_chained(artifacts: ArtifactCache, announced: bool) -> None:
    """Rows with and without masks, which end at different steps by their tokens and lengths."""

    def made(kind: type[Thirds]) -> Any:
        return (lambda: Announced(kind(), VOCAB)) if announced else kind

    exported = artifacts.get("nemotron_h", "float32", layout="paged", max_batch_size=6, max_seq_len=96)
    eos = tuple(range(0, exported.config.vocab_size, 7))
    kinds: list[dict[str, Any]] = [{"temperature": 0.6}, {}, {"temperature": 0.6}]
    found, kernels = [], AllKernels()
    for kind in (ChoosingSteps, TorchPagedEngine):
        engine = kind(exported.folder, device="cpu")
        engine.device.kernels = kernels if kind is ChoosingSteps else None
        loop = ServingLoop(engine, ServingSettings(memory_bytes=1 << 24, max_tokens=24), eos, None)
        for row in range(9):
            masks = {} if row % 3 == 2 else {"allowed_tokens": made(Thirds)}
            params = SamplingParams(seed=row, ignore_eos=row == 5, **kinds[row % 3], **masks)
            loop.add(ServingRequest(Request((3 + row, 4, 5 + row), params, 12 + 2 * row)))
        for failing in (NothingLeft, Broken):
            params = SamplingParams(temperature=0.6, seed=1, ignore_eos=True, allowed_tokens=made(failing))
            loop.add(ServingRequest(Request((3, 4), params, 12)))
        outputs = run_all(loop)
        found.append((answers(outputs), [str(output.error) for output in outputs if output.error]))
        if isinstance(engine, ChoosingSteps):
            assert engine.chained + engine.joined > loop.steps // 2
            assert (engine.joined > loop.steps // 4) == announced
        engine.device.kernels = None
    assert found[0] == found[1] and kernels.ended
    assert [error.split(", found")[0].split(" can")[0] for error in sorted(found[0][1])] == [
        "allowed_tokens: expected a mask",
        "expected a token that",
    ]


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_chosen_tokens_are_read_though_the_launch_behind_them_has_failed(
    artifacts: ArtifactCache, after: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before that launch or after it, which overwrites the logits."""
    exported = artifacts.get("nemotron_h", "float32", layout="paged", max_batch_size=6, max_seq_len=96)
    run = ChainedStep.run

    def failing(step: ChainedStep, inputs: PackedInputs) -> TorchStepResult:
        fails = len(inputs.seq_lens) == 1
        if after or not fails:
            found = run(step, inputs)
        if fails:
            raise EngineError("no step")
        return found

    class FailingSteps(ChoosingSteps):
        """Once it ``fails``, joined steps of one row do."""

        fails = False

        def joining(self, launch: Callable[[], StepResult]) -> StepResult:
            with monkeypatch.context() as patch:
                if self.fails:
                    patch.setattr(ChainedStep, "run", failing)
                return super().joining(launch)

    found = []
    for kind in (FailingSteps, TorchPagedEngine):
        engine = kind(exported.folder, device="cpu")
        engine.device.kernels = AllKernels() if kind is FailingSteps else None
        loop = ServingLoop(engine, ServingSettings(memory_bytes=1 << 24), (), None)
        loop.add(ServingRequest(Request((3, 4), SamplingParams(allowed_tokens=announced_thirds), 9)))
        run_all(loop)
        if isinstance(engine, FailingSteps):
            engine.fails = True
        for row, new in enumerate((9, 12)):
            params = SamplingParams(temperature=0.6, seed=row, allowed_tokens=announced_thirds)
            loop.add(ServingRequest(Request((3 + row, 4), params, new)))
        outputs = run_all(loop)
        found.append(answers(outputs))
        assert [output.request_id for output in outputs if output.error] == [2] * (kind is FailingSteps)
        engine.device.kernels = None
    assert found[0][1, 0] == found[1][1, 0]
