"""With a real model: concurrent requests, disturbed in every way, get the tokens of each alone."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import numpy as np
import pytest

from hybridge.artifact.errors import EngineError
from hybridge.runtime.async_llm import AsyncLLM
from hybridge.runtime.engines.onnxruntime.paged_array_engine import PagedArrayEngine
from hybridge.runtime.engines.paged_factory import create_paged_engine
from hybridge.runtime.generation import Generation, Request
from hybridge.runtime.llm import LLM
from hybridge.runtime.sampling import SamplingParams
from hybridge.runtime.serving.loop import ServingLoop
from hybridge.runtime.serving.request import ServingRequest
from hybridge.runtime.serving.settings import ServingSettings
from hybridge.runtime.speculation.settings import SpeculationSettings
from tests.runtime.serving.toy_loop import answers
from tests.support.artifacts import ArtifactCache, Exported
from tests.support.effort import examples

REQUESTS, LONGEST, MOST_NEW, ROWS = examples(200), 400, 4, 12
SMALL = {"mamba_head_dim": 8, "ssm_state_size": 16}


def poison(loop: ServingLoop, engine: PagedArrayEngine) -> None:
    """NaN in every block and slot without an owner."""
    manager = loop.scheduler.manager
    blocks = [block for block in range(manager.pool.num_blocks) if not manager.pool.references(block)]
    sources = {source for source, _ in loop.scheduler._slot_copies}
    slots = [s for s in range(manager.slots.num_slots) if not manager.slots.in_use(s) and s not in sources]
    for name in engine.pools.arrays:
        pool = engine.pools.view(name)
        if name.startswith("kv"):
            pool[:, blocks] = np.nan
        else:
            pool[slots] = np.nan


def paged_artifact(artifacts: ArtifactCache) -> Exported:
    """A hybrid whose states are small compared with its blocks, so that blocks can run short while slots are left."""
    return artifacts.get("nemotron_h", "float32", SMALL, layout="paged", max_batch_size=ROWS, max_seq_len=448)


def test_a_paged_artifact_opens_by_its_folder(artifacts: ArtifactCache) -> None:
    folder = paged_artifact(artifacts).folder
    prompts = [[5, 6, 7], [9] * 30]
    with LLM(folder, max_batch_size=2) as llm:
        answers = llm.generate(prompts, max_new_tokens=5)
        alone = [llm.generate(prompt, max_new_tokens=5).token_ids for prompt in prompts]
    assert alone == [answer.token_ids for answer in answers]

    async def serve() -> list[Generation]:
        async with AsyncLLM(folder) as llm:
            return await asyncio.gather(*(llm.generate(prompt, max_new_tokens=5) for prompt in prompts))

    assert alone == [answer.token_ids for answer in asyncio.run(serve())]


def test_a_dense_artifact_gives_the_answers_of_a_paged_one(artifacts: ArtifactCache) -> None:
    folder, system = artifacts.get("nemotron_h", "float32", SMALL).folder, list(range(5, 25))
    requests = [
        ([*system, 7], SamplingParams(max_new_tokens=6)),
        ([9] * 30, SamplingParams(max_new_tokens=4, prompt_logprobs=0)),
        ([*system, 8], SamplingParams(max_new_tokens=5, n=3, temperature=1.0, seed=4)),
        ([5, 6], SamplingParams(max_new_tokens=5, n=2, beam_width=3)),
    ]
    with LLM(paged_artifact(artifacts).folder, max_seq_len=64) as llm:
        expected = [answers_of(llm.generate(prompt, params)) for prompt, params in requests]
    settings = ServingSettings(prefix_cache="radix")
    with LLM(folder, max_seq_len=64, serving=settings) as llm:
        pinned = llm.cache_prefix(system)
        found = [llm.generate(prompt, params) for prompt, params in requests]
        assert found[0].cached_tokens == found[2].cached_tokens == pinned.length

    async def serve() -> list[Generation]:
        async with AsyncLLM(folder, max_seq_len=64, serving=settings) as llm:
            return await asyncio.gather(*(llm.generate(prompt, params) for prompt, params in requests))

    assert [answers_of(each) for each in found] == [answers_of(each) for each in asyncio.run(serve())] == expected


def answers_of(generation: Generation) -> list[tuple[int, ...]]:
    """The tokens of an answer and of its alternatives."""
    return [each.token_ids for each in (generation, *generation.alternatives)]


def test_states_that_cannot_be_taken_back_take_no_drafts(artifacts: ArtifactCache) -> None:
    folder = artifacts.get("nemotron_h", "float32").folder
    with pytest.raises(
        EngineError, match=r"^speculation: the recurrent states of dense artifacts cannot be rolled back: export"
    ):
        LLM(folder, serving=ServingSettings(speculation=SpeculationSettings()))


def test_disturbed_requests_get_the_tokens_of_each_alone(artifacts: ArtifactCache) -> None:
    engine = create_paged_engine(paged_artifact(artifacts).folder)
    assert isinstance(engine, PagedArrayEngine)
    rng = np.random.default_rng(3)
    vocab = engine.config.vocab_size
    requests = [
        Request(
            tuple(rng.integers(0, vocab, int(rng.integers(1, LONGEST + 1))).tolist()),
            SamplingParams(ignore_eos=True, n=int(rng.choice([1, 1, 3]))),
            int(rng.integers(1, MOST_NEW + 1)),
        )
        for _ in range(REQUESTS)
    ]
    roomy = ServingLoop(engine, ServingSettings(), (), None)
    alone = []
    for request in requests:
        roomy.add(ServingRequest(replace(request, params=SamplingParams(ignore_eos=True))))
        outputs = [output for _ in range(MOST_NEW) if roomy.busy for output in roomy.step()]
        alone.append(next(iter(answers(outputs).values())))

    # Room for about three sequences of full length: the others are swapped out, or computed again.
    needed = 3 * (28 * engine.block_bytes(16) + engine.slot_bytes)
    settings = ServingSettings(memory_bytes=needed, max_tokens=200, swap_bytes=needed // 8)
    loop = ServingLoop(engine, settings, (), None)
    waiting, outputs, cancelled = list(requests), [], set()
    swaps = again = 0
    while waiting or loop.busy:
        while waiting and rng.random() < 0.8:
            loop.add(ServingRequest(waiting.pop(0)))
        if rng.random() < 0.1:
            cancelled.add(victim := int(rng.integers(0, REQUESTS)))
            loop.cancel(victim)
        poison(loop, engine)
        before = {s.id: s.preemptions for s in loop.scheduler.sequences.values()}
        outputs += loop.step()
        lost = [s for s in loop.scheduler.sequences.values() if s.preemptions > before.get(s.id, 0)]
        swaps += sum(sequence.host_copy is not None for sequence in lost)
        again += sum(sequence.host_copy is None for sequence in lost)
        loop.scheduler.check_integrity()
    found = answers(outputs)
    wrong = {key for key, tokens in found.items() if tokens != alone[key[0]]}
    assert not wrong
    missing = {id_ for id_ in range(REQUESTS) if (id_, requests[id_].params.n - 1) not in found}
    assert missing <= cancelled and len(found) > REQUESTS
    assert swaps > 0 and again > 0, (swaps, again)
