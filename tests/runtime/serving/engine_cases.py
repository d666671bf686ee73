"""What every paged engine has to serve: requests in company get the tokens of each alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from hybridge.runtime.engines.paged import PagedEngine
from hybridge.runtime.generation import Request
from hybridge.runtime.llm import LLM
from hybridge.runtime.sampling import SamplingParams
from hybridge.runtime.scheduler import Priority
from hybridge.runtime.serving.loop import ServingLoop
from hybridge.runtime.serving.request import ServingRequest
from hybridge.runtime.serving.settings import ServingSettings
from hybridge.runtime.speculation import DraftRequest, Proposal, SpeculationSettings
from tests.runtime.serving.toy_loop import answers

# Overwrites with NaN, of every pool, the blocks and the slots of these numbers.
Poison = Callable[[Sequence[int], Sequence[int]], None]


def check_disturbed_requests(engine: PagedEngine, poison: Poison, count: int = 24, longest: int = 61) -> None:
    """``count`` requests that are preempted, swapped out and cancelled get the tokens of each alone."""
    rng = np.random.default_rng(3)
    requests = [
        Request(
            tuple(rng.integers(0, engine.config.vocab_size, int(rng.integers(1, longest))).tolist()),
            SamplingParams(ignore_eos=True, n=int(rng.choice([1, 1, 2]))),
            int(rng.integers(1, 9)),
        )
        for _ in range(count)
    ]
    roomy, alone = ServingLoop(engine, ServingSettings(), (), None), []
    for request in requests:
        roomy.add(ServingRequest(replace(request, params=SamplingParams(ignore_eos=True))))
        alone.append(next(iter(answers([o for _ in range(8) if roomy.busy for o in roomy.step()]).values())))
    # Room for two sequences of full length: the others are swapped out, or computed again.
    needed = 2 * (8 * engine.block_bytes(16) + engine.slot_bytes)
    settings = ServingSettings(memory_bytes=needed, max_tokens=50, swap_bytes=needed // 4, policy=Priority())
    loop = ServingLoop(engine, settings, (), None)
    waiting, outputs, preempted = list(requests), [], 0
    while waiting or loop.busy:
        while waiting and rng.random() < 0.8:
            loop.add(ServingRequest(waiting.pop(0), priority=int(rng.integers(0, 3))))
        if rng.random() < 0.05:
            loop.cancel(int(rng.integers(0, len(requests))))
        _poison_unused(loop, poison)
        before = {s.id: s.preemptions for s in loop.scheduler.sequences.values()}
        outputs += loop.step()
        preempted += sum(s.preemptions > before.get(s.id, 0) for s in loop.scheduler.sequences.values())
        loop.scheduler.check_integrity()
    found = answers(outputs)
    assert {key: tokens for key, tokens in found.items() if tokens != alone[key[0]]} == {}
    assert len(found) > count * 5 // 8 and preempted


def _poison_unused(loop: ServingLoop, poison: Poison) -> None:
    """NaN in every block and slot without an owner."""
    manager = loop.scheduler.manager
    blocks = [block for block in range(manager.pool.num_blocks) if not manager.pool.references(block)]
    sources = {source for source, _ in loop.scheduler._slot_copies}
    slots = [s for s in range(manager.slots.num_slots) if not manager.slots.in_use(s) and s not in sources]
    poison(blocks, slots)


class KnownAnswers:
    """A drafter that knows the answers; the right tokens of a proposal follow ``rng``, 0 to all of them."""

    def __init__(self, texts: Sequence[Sequence[int]], vocab: int, seed: int) -> None:
        self.texts, self.vocab, self.rng = [list(text) for text in texts], vocab, np.random.default_rng(seed)

    def propose(self, requests: Sequence[DraftRequest]) -> list[Proposal]:
        found = []
        for each in requests:
            size = len(each.tokens)
            text = next((text for text in self.texts if text[:size] == each.tokens), [])
            right = text[size : size + int(self.rng.integers(0, each.most + 1))]
            wrong = (text[size + len(right)] + 1) % self.vocab if size + len(right) < len(text) else 0
            found.append(Proposal((*right, *[wrong] * (each.most - len(right)))))
        return found

    def forget(self, sequence: int) -> None:
        pass


def check_speculated_tokens(folder: Path, engine: PagedEngine, most: int = 3, new: int = 20) -> None:
    """With up to ``most`` draft tokens, any number of which is right, the tokens are those of plain greedy decoding."""
    recurrent = bool(engine.config.recurrent_layers)
    rng, sampling = np.random.default_rng(6), SamplingParams(ignore_eos=True)
    prompts = [rng.integers(0, engine.config.vocab_size, size).tolist() for size in (3, 17, 30)]
    plain = [answer.token_ids for answer in LLM(folder, engine).generate(prompts, sampling, new)]
    room = {"memory_bytes": 2 << 20, "max_tokens": 16}
    drafter = KnownAnswers([p + list(t) for p, t in zip(prompts, plain, strict=True)], engine.config.vocab_size, 2)
    speculation = SpeculationSettings(most, drafter, adaptive=False)
    llm = LLM(folder, engine, serving=ServingSettings(prefix_cache="radix", speculation=speculation, **room))
    for each in (prompts, prompts[1:], [prompts[0] + list(plain[0][:11])]):
        found = llm.generate(each, sampling, new - 11 * (each[0] not in prompts))
        for prompt, answer in zip(each, found, strict=True):
            known = next(text for text in drafter.texts if text[: len(prompt)] == prompt)
            assert list(answer.token_ids) == known[len(prompt) : len(prompt) + len(answer.token_ids)]
        llm.loop.scheduler.check_integrity()
    metrics = llm.loop.speculation
    assert 0 < metrics.accepted < metrics.proposed
    assert metrics.state_bytes == engine.rollback_token_bytes and (metrics.state_bytes > 0) == recurrent
    # The last prompts were known to the prefix cache, states of answers included.
    assert found[0].cached_tokens > 0
