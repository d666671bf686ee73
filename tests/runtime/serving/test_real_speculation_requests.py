"""Requests of every kind on both engines: draft tokens change no answer, and leave nothing behind."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from hybridge.runtime.async_llm import AsyncLLM
from hybridge.runtime.llm import LLM
from hybridge.runtime.sampling import SamplingParams
from hybridge.runtime.serving.settings import ServingSettings
from hybridge.runtime.speculation import DraftModel, DraftRequest, Proposal, SpeculationSettings
from tests.support.artifacts import ArtifactCache
from tests.support.effort import sample

MOST, NEW = 3, 14
PROMPTS = ([4, 5, 6, 4, 5, 6, 4], [9, 9, 9, 9], [1, 2, 3, 1, 2, 3], [7])
KINDS = {
    "greedy": SamplingParams(ignore_eos=True),
    "sampling": SamplingParams(ignore_eos=True, temperature=0.8, top_p=0.9, seed=3),
    "answers": SamplingParams(ignore_eos=True, temperature=1.1, seed=5, n=3),
    "penalty": SamplingParams(ignore_eos=True, repetition_penalty=1.4),
    "one draft token": SamplingParams(ignore_eos=True, speculative_tokens=1),
    "no draft tokens": SamplingParams(ignore_eos=True, speculative_tokens=0),
    "beams": SamplingParams(ignore_eos=True, beam_width=3),
}

ENGINES = ("onnxruntime", "torch")


@pytest.fixture(scope="module")
def opened(request: pytest.FixtureRequest, artifacts: ArtifactCache) -> tuple[Path, str]:
    if request.param == "torch":
        pytest.importorskip("torch", reason="the torch engine needs torch")
    options = {"layout": "paged", "max_batch_size": 8}
    return artifacts.get("nemotron_h", "float32", **options).folder, request.param


class Repeating:
    """Proposes the last tokens again, and calls ``then`` each time."""

    def __init__(self) -> None:
        self.then = lambda: None

    def propose(self, requests: Sequence[DraftRequest]) -> list[Proposal]:
        self.then()
        return [Proposal(tuple((list(each.tokens) * MOST)[-each.most :])) for each in requests]

    def forget(self, sequence: int) -> None:
        pass


def settings(drafter: DraftModel | Repeating) -> ServingSettings:
    return ServingSettings(speculation=SpeculationSettings(MOST, drafter, adaptive=False))


# On push each test runs on one engine.
@pytest.mark.parametrize("opened", sample(ENGINES, on_push=("onnxruntime",)), indirect=True)
def test_every_kind_of_request_in_one_batch(opened: tuple[Path, str]) -> None:
    """A seed gives the same tokens, since these drafts do not draw; beams have no draft tokens."""
    folder, engine = opened
    prompts = [PROMPTS[i % len(PROMPTS)] for i in range(len(KINDS))]
    answers = []
    for serving in (None, settings(DraftModel(folder))):
        with LLM(folder, engine, serving=serving) as llm:
            found = llm.generate(prompts, list(KINDS.values()), NEW)
            answers.append([(a.token_ids, [b.token_ids for b in a.alternatives]) for a in found])
            if serving is not None:
                metrics = llm.loop.speculation
                assert metrics.proposed and metrics.chosen[1] and metrics.chosen[0] and metrics.accepted
                assert not llm.loop.scheduler.sequences
    for kind, plain, speculated in zip(KINDS, *answers, strict=True):
        assert speculated == plain, kind


@pytest.mark.parametrize("opened", sample(ENGINES, on_push=("torch",)), indirect=True)
def test_requests_that_are_cancelled_in_a_step(opened: tuple[Path, str]) -> None:
    """Some while their draft tokens are on their way, from another thread than that of the steps."""
    folder, engine = opened
    with LLM(folder, engine) as llm:
        plain = [answer.token_ids for answer in llm.generate(list(PROMPTS), KINDS["greedy"], NEW)]
    drafter = Repeating()

    async def run() -> None:
        async with AsyncLLM(folder, engine, serving=settings(drafter)) as llm:
            streams = [llm.add(prompt, KINDS["greedy"], NEW) for prompt in PROMPTS * 2]
            loop, calls = asyncio.get_running_loop(), list[int]()

            def cancel() -> None:
                calls.append(0)
                if len(calls) in (2, 4):
                    loop.call_soon_threadsafe(streams[len(calls)].cancel)

            drafter.then = cancel

            async def answer(index: int) -> tuple[int, ...]:
                return tuple([token async for piece in streams[index] for token in piece.token_ids])

            found = await asyncio.gather(*(answer(index) for index in range(len(streams))))
            for index, tokens in enumerate(found):
                requests = plain[index % len(PROMPTS)]
                assert tokens == requests[: len(tokens)] and (len(tokens) == NEW or index in (2, 4))
            assert not llm.loop.scheduler.sequences
            llm.loop.scheduler.check_integrity()

    asyncio.run(run())
