"""Draft tokens change how many steps an answer takes, never the answer: an exact toy engine, any accept pattern."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridge.artifact.errors import EngineError
from hybridge.runtime.prefix_cache.settings import PrefixCacheSettings
from hybridge.runtime.speculation import DraftRequest, Proposal, SpeculationSettings
from tests.runtime.serving.test_prefix_cache import poison
from tests.runtime.serving.toy_loop import answers, make_request, run_all, toy_loop
from tests.runtime.toy_engine import HYBRID
from tests.runtime.toy_engine import PURE_ATTENTION as ATTENTION
from tests.runtime.toy_engine import PURE_MAMBA as RECURRENT
from tests.runtime.toy_paged_engine import VOCAB, paged_config, toy_greedy
from tests.support.effort import examples

MOST = 4


class PartlyRight:
    """Proposes what the model says, up to the number of right tokens that comes next in ``pattern``, then others."""

    def __init__(self, config, pattern: Sequence[int]) -> None:
        self.config, self.pattern, self.calls = config, list(pattern), 0
        self.forgotten: list[int] = []

    def propose(self, requests: Sequence[DraftRequest]) -> list[Proposal]:
        proposals = []
        for each in requests:
            right = self.pattern[self.calls % len(self.pattern)]
            self.calls += 1
            text = list(each.tokens)
            for place in range(each.most):
                best = toy_greedy(self.config, text, 1)[0]
                text.append(best if place < right else (best + 1) % VOCAB)
            proposals.append(Proposal(tuple(text[len(each.tokens) :])))
        return proposals

    def forget(self, sequence: int) -> None:
        self.forgotten.append(sequence)


def speculating(layers, pattern, most: int = MOST, adaptive: bool = False, cost: float = 0.1, **options):
    """A loop with a draft of ``pattern``; blocks of 4 tokens."""
    drafter = PartlyRight(paged_config(layers, window=options.get("window")), pattern)
    settings = SpeculationSettings(most, drafter, adaptive=adaptive, draft_token_cost=cost)
    loop, engine = toy_loop(layers, speculation=settings, **options)
    return loop, engine, drafter


@pytest.mark.parametrize(("layers", "window"), [(HYBRID, None), (RECURRENT, None), (ATTENTION, None), (ATTENTION, 7)])
@settings(deadline=None, max_examples=examples(12))
@given(st.lists(st.integers(0, MOST), min_size=1, max_size=9), st.data())
def test_any_accept_pattern_gives_the_tokens_of_each_alone(layers, window, pattern, data) -> None:
    memory = {"memory_bytes": 1500, "swap_bytes": 300, "max_tokens": 40}
    loop, engine, _ = speculating(layers, pattern, window=window, prefix_cache="off", **memory)
    sizes = st.tuples(st.integers(1, 30), st.integers(1, 14))
    requests = data.draw(st.lists(sizes, min_size=1, max_size=5))
    rng, expected, outputs = np.random.default_rng(len(pattern)), {}, []
    for prompt_size, new in requests:
        prompt = rng.integers(0, VOCAB, prompt_size).tolist()
        expected[loop.add(make_request(prompt, new)), 0] = tuple(toy_greedy(engine.config, prompt, new))
    while loop.busy:
        poison(loop, engine)
        outputs += loop.step()
        loop.scheduler.check_integrity()
    assert answers(outputs) == expected
    assert loop.scheduler.manager.slots.used == 0
    assert loop.scheduler.manager.pool.available == loop.scheduler.manager.pool.num_blocks
    assert loop.speculation.accepted <= loop.speculation.proposed


@pytest.mark.parametrize("layers", [HYBRID, ATTENTION])
@pytest.mark.parametrize("kind", ["radix", "blocks"])
def test_the_prefix_cache_gets_exact_states_only(layers, kind) -> None:
    cache = PrefixCacheSettings(kind=kind, decode_interval=8) if kind == "radix" else kind
    loop, engine, _ = speculating(layers, [4, 1, 0, 3], prefix_cache=cache)
    rng, history, cached = np.random.default_rng(4), rng_prompt(4, 9), 0
    for _ in range(6):
        expected = toy_greedy(engine.config, history, 11)
        loop.add(make_request(history, 11))
        outputs = run_all(loop)
        (generation,) = [output.piece.generation for output in outputs if output.piece and output.piece.generation]
        assert list(generation.token_ids) == expected
        cached += generation.cached_tokens
        history = history + expected[: int(rng.integers(1, 12))] + [int(rng.integers(0, VOCAB))]
        history = history[:80]
    # A state after rejected draft tokens would have failed in the toy engine, which counts the tokens of states.
    assert cached > 0 or (kind == "blocks" and layers == HYBRID)


def rng_prompt(seed: int, size: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, VOCAB, size).tolist()


def test_correct_draft_tokens_save_steps_and_are_counted() -> None:
    plain, engine = toy_loop(HYBRID)
    plain.add(make_request([1, 2, 3], 21))
    expected = answers(run_all(plain))
    loop, engine, drafter = speculating(HYBRID, [MOST])
    loop.add(make_request([1, 2, 3], 21))
    assert answers(run_all(loop)) == expected
    # The prompt gives 1 token, each step with 4 right draft tokens 5.
    assert loop.steps == 1 + 4 and plain.steps == 21
    metrics = loop.speculation
    assert (metrics.rows, metrics.proposed, metrics.accepted) == (4, 16, 15 + 1)
    assert metrics.acceptance == 1 and metrics.state_bytes == engine.rollback_token_bytes and metrics.chosen == {4: 4}
    assert drafter.forgotten == [0]


def test_end_tokens_and_limits_end_an_answer_within_draft_tokens() -> None:
    config = paged_config(HYBRID)
    text = toy_greedy(config, [5, 6], 30)
    eos = text[7]
    loop, _, _ = speculating(HYBRID, [MOST], eos=(eos,))
    loop.add(make_request([5, 6], 30))
    loop.add(make_request([5, 6], 3))
    found = answers(run_all(loop))
    end = text.index(eos) + 1
    assert found == {(0, 0): tuple(text[:end]), (1, 0): tuple(text[: min(3, end)])}


def test_requests_choose_how_many_and_beams_take_none() -> None:
    loop, _, drafter = speculating(HYBRID, [MOST])
    loop.add(make_request([3, 4], 12, speculative_tokens=0))
    loop.add(make_request([3, 4], 4, beam_width=3))
    run_all(loop)
    assert drafter.calls == 0 and loop.speculation.proposed == 0
    loop.add(make_request([3, 4], 12, speculative_tokens=2))
    run_all(loop)
    assert max(loop.speculation.chosen) == 2


@pytest.mark.parametrize(
    "params", [{"temperature": 0.8, "seed": 3, "n": 3}, {"repetition_penalty": 1.5, "logprobs": 2}]
)
def test_seeded_answers_are_those_without_speculation(params) -> None:
    plain, _ = toy_loop(HYBRID)
    loop, _, _ = speculating(HYBRID, [2, 0, 4], adaptive=True)
    for each in (plain, loop):
        each.add(make_request([9, 8, 7, 6, 5], 25, **params))
    assert answers(run_all(loop)) == answers(run_all(plain))


@pytest.mark.parametrize("fails", ["step", "advance"])
def test_a_failed_step_ends_its_requests_and_leaks_no_memory(fails) -> None:
    loop, engine, drafter = speculating(HYBRID, [2])
    loop.add(make_request([1, 2, 3], 20))
    loop.step()
    loop.step()
    if fails == "step":
        engine.fail_at = {engine.steps + 1}
    engine.fail_to_advance = fails == "advance"
    outputs = loop.step()
    engine.fail_to_advance = False
    loop.scheduler.check_integrity()
    assert isinstance(outputs[-1].error, EngineError) and not loop.busy
    assert loop.scheduler.manager.slots.used == 0 and drafter.forgotten
    loop.add(make_request([1, 2, 3], 20))
    assert list(answers(run_all(loop)).values()) == [tuple(toy_greedy(engine.config, [1, 2, 3], 20))]


def test_a_request_cancelled_between_steps_gives_everything_back() -> None:
    loop, _, drafter = speculating(HYBRID, [3])
    id_ = loop.add(make_request([1, 2, 3], 20))
    for _ in range(3):
        loop.step()
    loop.cancel(id_)
    loop.scheduler.check_integrity()
    assert loop.scheduler.manager.slots.used == loop.scheduler.manager.pool.used == 0 and drafter.forgotten == [0]


def test_a_proposal_that_its_distribution_cannot_give_ends_its_request_only() -> None:
    loop, engine, drafter = speculating(HYBRID, [2])
    bad, good = loop.add(make_request([1, 2], 9)), loop.add(make_request([3], 9))
    propose = drafter.propose
    drafter.propose = lambda requests: [Proposal((1,), np.eye(VOCAB)[:1]), *propose(requests)[1:]]
    outputs = loop.step() + loop.step()
    drafter.propose = propose
    outputs += run_all(loop)
    (error,) = [output for output in outputs if output.error]
    assert error.request_id == bad and "with a probability above 0" in str(error.error)
    assert answers(outputs) == {(good, 0): tuple(toy_greedy(engine.config, [3], 9))}


def test_draft_tokens_that_the_engine_cannot_take_back_are_refused() -> None:
    settings = SpeculationSettings(4)
    with pytest.raises(
        EngineError, match="that can roll back 5 tokens of a row, found toy-paged, which can roll back 4: "
    ):
        toy_loop(HYBRID, speculation=settings, max_rollback=4)
    with pytest.raises(EngineError, match="the toy-paged engine cannot roll back draft tokens: use onnxruntime"):
        toy_loop(HYBRID, speculation=settings, max_rollback=0)
    # Attention alone needs no states.
    toy_loop(ATTENTION, speculation=settings, max_rollback=0)


def test_modes_of_operators_are_refused_where_there_are_none() -> None:
    with pytest.raises(EngineError, match=r"for a model without recurrent layers, found causal_conv1d: leave it out"):
        toy_loop(ATTENTION, speculation=SpeculationSettings(4, mode={"causal_conv1d": "replay"}))
    for mode in ("auto", "replay", "snapshot"):
        toy_loop(ATTENTION, speculation=SpeculationSettings(4, mode=mode))


def test_draft_tokens_take_no_slots_of_the_pools() -> None:
    loop, engine, _ = speculating(HYBRID, [MOST], max_rows=3)
    assert loop.pools.sizes.num_slots == 3 and loop.speculation.state_bytes == engine.rollback_token_bytes
    loop.add(make_request([1, 2, 3], 21))
    assert list(answers(run_all(loop)).values()) == [tuple(toy_greedy(engine.config, [1, 2, 3], 21))]
    assert loop.speculation.chosen == {4: 4}


def test_chunked_prompts_and_preemption_work_with_draft_tokens() -> None:
    """Memory for two of five requests, and prompts longer than a step: all answers are those of each alone."""
    options = {"memory_bytes": 1000, "max_tokens": 12, "max_rows": 5, "swap_bytes": 600, "prefix_cache": "radix"}
    loop, engine, _ = speculating(HYBRID, [2, 0, 4, 1], **options)
    prompts = [rng_prompt(seed, 6 + 7 * seed) for seed in range(5)]
    for place, prompt in enumerate(prompts):
        loop.add(make_request(prompt, 15, priority=place))
    preempted = 0
    outputs = []
    while loop.busy:
        poison(loop, engine)
        outputs += loop.step()
        loop.scheduler.check_integrity()
        preempted += len(loop.last_plan.swap_outs)
    assert preempted
    found = answers(outputs)
    assert [list(found[i, 0]) for i in range(5)] == [toy_greedy(engine.config, prompt, 15) for prompt in prompts]
    assert 0 < loop.speculation.accepted < loop.speculation.proposed
