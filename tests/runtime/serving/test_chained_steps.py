"""Steps that are launched before the tokens of the step before are known: same tokens, and no state goes too far."""

from __future__ import annotations

from typing import Any

import pytest

from hybridge.runtime.prefix_cache.settings import PrefixCacheSettings
from hybridge.runtime.sampling import Sampler, SamplingParams
from tests.runtime.serving.toy_loop import Letters, ahead_loop, answers, make_request, run_all
from tests.runtime.toy_engine import HYBRID, PURE_ATTENTION, PURE_MAMBA
from tests.runtime.toy_paged_engine import paged_config, toy_greedy, toy_logits

EOS = (17, 40)
# Parameters of rows for which the host must see the token, or the logits, before the next step.
NEEDS_THE_HOST: dict[str, dict[str, Any]] = {
    "log-probabilities": {"logprobs": 1},
    "penalty": {"repetition_penalty": 1.2},
    "min_tokens": {"min_tokens": 50},
    "processor": {"temperature": 1.0, "seed": 1, "logits_processors": lambda tokens, logits: logits},
    "beams": {"beam_width": 2},
}


def alone(config, prompt: list[int], new: int, **params) -> tuple[int, ...]:
    """The answer to ``prompt`` from logits computed from scratch."""
    sampler, tokens = Sampler(SamplingParams(**params), prompt), list(prompt)
    while len(tokens) < len(prompt) + new:
        tokens.append(sampler.sample(toy_logits(config, tokens))[0])
        if tokens[-1] in config.eos_token_ids:
            break
    return tuple(tokens[len(prompt) :])


@pytest.mark.parametrize("layers", [HYBRID, PURE_ATTENTION, PURE_MAMBA], ids=str)
@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.9, "top_k": 20}], ids=str)
@pytest.mark.parametrize("pad_to", [1, 4])
def test_most_steps_of_equal_rows_are_chained(layers, sampling: dict[str, Any], pad_to: int) -> None:
    loop, engine = ahead_loop(layers=layers, eos=EOS, block_size=16, pad_to=pad_to)
    prompts = [[row, 3, row + 1] for row in range(7)]
    given = [{**sampling, "seed": row} if sampling else {} for row in range(7)]
    ids = [loop.add(make_request(p, 60, **each)) for p, each in zip(prompts, given, strict=True)]
    found = answers(run_all(loop))
    for id_, prompt, each in zip(ids, prompts, given, strict=True):
        assert found[id_, 0] == alone(engine.config, prompt, 60, **each)
    # Not those after a row has ended.
    assert engine.chained > 0.8 * loop.steps


def test_a_step_after_the_last_token_of_an_answer_is_chained() -> None:
    loop, engine = ahead_loop(block_size=4)
    news = [9, 14, 14, 20]
    ids = [loop.add(make_request([row], new)) for row, new in enumerate(news)]
    found = answers(run_all(loop))
    for row, (id_, new) in enumerate(zip(ids, news, strict=True)):
        assert list(found[id_, 0]) == toy_greedy(engine.config, [row], new)
    # All but the first; no step follows the last token.
    assert loop.steps == engine.chained + 1 == max(news)


def test_the_state_of_an_ended_answer_has_consumed_its_tokens_alone() -> None:
    """The next turn begins with the cached state: the toy engine counts the tokens of each state."""
    cache = PrefixCacheSettings(decode_interval=4)
    loop, engine = ahead_loop(layers=HYBRID, eos=EOS, block_size=16, prefix_cache=cache, memory_bytes=100_000)
    prompts = [[row, 5] for row in range(8)]
    ids = [loop.add(make_request(prompt, 40)) for prompt in prompts]
    found = answers(run_all(loop))
    ended = [id_ for id_ in ids if found[id_, 0][-1] in EOS]
    assert ended and engine.chained
    for id_, prompt in zip(ids, prompts, strict=True):
        turn = [*prompt, *found[id_, 0], 9]
        again = loop.add(make_request(turn, 5))
        outputs = run_all(loop)
        assert list(answers(outputs)[again, 0]) == toy_greedy(engine.config, turn, 5)
        generation = next(o.piece.generation for o in outputs if o.piece is not None and o.piece.generation)
        # All but the last token of the answer, which no step was fed.
        assert generation.cached_tokens >= len(turn) - 2


@pytest.mark.parametrize("layers", [HYBRID, PURE_ATTENTION], ids=str)
def test_a_stop_string_ends_an_answer_after_the_next_step_is_launched(layers) -> None:
    """That step has fed the token that completed it: the state is not kept, which would count a token too many."""
    cache = PrefixCacheSettings(decode_interval=4)
    loop, engine = ahead_loop(
        layers=layers, block_size=16, prefix_cache=cache, memory_bytes=100_000, tokenizer=Letters()
    )
    prompts = [[row, 5] for row in range(8)]
    ids = [loop.add(make_request(prompt, 40, stop=("A", "5"))) for prompt in prompts]
    found = answers(run_all(loop))
    assert engine.chained == loop.steps - 1
    for id_, prompt in zip(ids, prompts, strict=True):
        whole = toy_greedy(engine.config, prompt, 40)
        end = next((place for place, token in enumerate(whole) if chr(48 + token) in "A5"), 39)
        assert list(found[id_, 0]) == whole[: end + 1]
        turn = [*prompt, *found[id_, 0], 9]
        again = loop.add(make_request(turn, 5))
        assert list(answers(run_all(loop))[again, 0]) == toy_greedy(engine.config, turn, 5)


@pytest.mark.parametrize("refuses", [1, 2, 3])
def test_steps_that_the_engine_does_not_launch_ahead_are_launched_later(refuses: int) -> None:
    loop, engine = ahead_loop(eos=EOS, block_size=16, max_rows=4)
    engine.refuses = refuses
    ids = [loop.add(make_request([row, 3], 30)) for row in range(9)]
    found = answers(run_all(loop))
    assert [found[id_, 0] for id_ in ids] == [alone(engine.config, [row, 3], 30) for row in range(9)]
    assert bool(engine.chained) == (refuses > 1) and engine.asked > loop.steps / 2


@pytest.mark.parametrize("params", NEEDS_THE_HOST.values(), ids=NEEDS_THE_HOST)
def test_a_row_that_needs_the_host_ends_the_chain(params: dict[str, Any]) -> None:
    loop, engine = ahead_loop(block_size=16)
    loop.add(make_request([1, 2], 30, **params))
    other = loop.add(make_request([3, 4], 30))
    assert list(answers(run_all(loop))[other, 0]) == toy_greedy(engine.config, [3, 4], 30)
    assert not engine.chained


def test_a_request_that_leaves_during_a_chained_step_leaves_no_state() -> None:
    cache = PrefixCacheSettings(decode_interval=4)
    loop, engine = ahead_loop(layers=HYBRID, block_size=16, prefix_cache=cache, memory_bytes=100_000)
    leaves, stays = loop.add(make_request([1, 2], 60)), loop.add(make_request([3, 4], 60))
    outputs = []
    while not engine.chained:
        outputs += loop.step()
    outputs += loop.step(lambda: loop.cancel(leaves))
    loop.scheduler.check_integrity()
    assert list(answers(outputs + run_all(loop))[stays, 0]) == toy_greedy(engine.config, [3, 4], 60)
    again = loop.add(make_request([1, 2], 60))
    assert list(answers(run_all(loop))[again, 0]) == toy_greedy(paged_config(HYBRID), [1, 2], 60)


def test_an_arrival_waits_for_one_step_at_most() -> None:
    loop, engine = ahead_loop(block_size=16)
    loop.add(make_request([1, 2], 60))
    outputs, arrived = [], list[int]()
    while engine.chained < 3:
        outputs += loop.step()
    outputs += loop.step(lambda: arrived.append(loop.add(make_request([5], 4))) if not arrived else None)
    assert loop.scheduler.running == 2
    assert list(answers(outputs + run_all(loop))[arrived[0], 0]) == toy_greedy(engine.config, [5], 4)
