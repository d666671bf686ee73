"""Concurrent requests get the tokens that each gets alone, whatever happens to the others."""

import numpy as np
import pytest

from hybridge.artifact.errors import EngineError, RequestError
from hybridge.runtime.sampling import Sampler, SamplingParams
from tests.runtime.serving.beams_alone import beams_alone
from tests.runtime.serving.toy_loop import MAX_SEQ, ahead_loop, answers, make_request, run_all, toy_loop
from tests.runtime.toy_engine import HYBRID, PURE_ATTENTION, PURE_MAMBA
from tests.runtime.toy_paged_engine import toy_greedy, toy_logits
from tests.support.effort import examples

REQUESTS = examples(200)


@pytest.mark.parametrize(("swap_bytes", "ahead"), [(0, False), (1 << 20, False), (1 << 20, True)])
@pytest.mark.parametrize(
    ("layers", "window"),
    [(HYBRID, None), (HYBRID, 11), (PURE_ATTENTION, None), (PURE_ATTENTION, 11), (PURE_MAMBA, None)],
)
def test_many_requests_get_the_tokens_of_each_alone(layers, window, swap_bytes, ahead):
    rng = np.random.default_rng(7)
    loop, engine = toy_loop(
        layers, window, eos=(3,), pad_to=4, max_seq_len=440, ahead=ahead, memory_bytes=8_000, swap_bytes=swap_bytes
    )
    expected, cancelled, outputs = {}, set(), []
    waiting = [
        (rng.integers(0, 4, int(rng.integers(1, 401))).tolist(), int(rng.integers(1, 40)), int(rng.integers(1, 4)))
        for _ in range(REQUESTS)
    ]
    while waiting or loop.busy:
        for _ in range(int(rng.integers(0, 4))):
            if waiting:
                prompt, new, n = waiting.pop()
                id_ = loop.add(make_request(prompt, new, n=n))
                expected.update({(id_, choice): (prompt, new) for choice in range(n)})
        if expected and rng.random() < 0.1:
            victim = int(rng.integers(0, REQUESTS))
            loop.cancel(victim)
            cancelled.add(victim)
        outputs += loop.step()
    loop.scheduler.check_integrity()
    found = answers(outputs)
    assert {id_ for id_, _ in expected} - {id_ for id_, _ in found} <= cancelled
    alone = {key: tuple(toy_greedy(engine.config, *expected[key])) for key in found}
    assert found == alone


def test_preemptions_happen_in_the_mix():
    loop, engine = toy_loop(memory_bytes=1600, swap_bytes=0)
    ids = {loop.add(make_request([seed] * 9, 80)): seed for seed in range(8)}
    seen = set()
    while loop.busy:
        seen |= {s.id for s in loop.scheduler.sequences.values() if s.preemptions}
        for output in loop.step():
            if output.piece.generation:
                prompt = [ids[output.request_id]] * 9
                assert list(output.piece.generation.token_ids) == toy_greedy(engine.config, prompt, 80)
    assert seen


def test_a_seed_gives_the_same_tokens_in_any_batch():
    loop, engine = toy_loop()
    prompt, params = [5, 9, 2], SamplingParams(temperature=1.0, seed=11)
    for other in range(5):
        loop.add(make_request([other] * 7, 20))
    mine = loop.add(make_request(prompt, 12, temperature=1.0, seed=11, n=3))
    found = answers(run_all(loop))
    for choice in range(3):
        sampler, tokens = Sampler(SamplingParams(temperature=1.0, seed=params.seed + choice)), list(prompt)
        for _ in range(12):
            tokens.append(sampler.sample(toy_logits(engine.config, tokens))[0])
        assert list(found[mine, choice]) == tokens[3:]
    assert len({found[mine, choice] for choice in range(3)}) == 3


def test_answers_from_the_largest_seed_differ():
    """seed + 1 is no seed that a request may have: the parameters are not checked again for each answer."""
    loop, _ = toy_loop()
    loop.add(make_request([5, 9, 2], 12, temperature=1.0, seed=2**128 - 1, n=3))
    assert len(set(answers(run_all(loop)).values())) == 3


def test_a_prompt_of_several_answers_is_computed_once():
    loop, engine = toy_loop()
    loop.add(make_request([1] * 40, 2, n=6))
    run_all(loop)
    assert engine.tokens == 40 + 6


@pytest.mark.parametrize("ahead", [False, True])
def test_a_failed_step_fails_its_requests_and_the_others_continue(ahead):
    loop, engine = toy_loop(max_rows=2, ahead=ahead)
    ids = [loop.add(make_request([seed] * 5, 6)) for seed in range(4)]
    engine.fail_at = {3}
    outputs = run_all(loop)
    errors = {output.request_id: output.error for output in outputs if output.error}
    assert set(errors) == set(ids[:2]) and all("told to fail" in str(error) for error in errors.values())
    found = answers(outputs)
    assert {key: list(tokens) for key, tokens in found.items()} == {
        (id_, 0): toy_greedy(engine.config, [id_] * 5, 6) for id_ in ids[2:]
    }


def test_an_exception_of_the_engine_is_an_engine_error(monkeypatch):
    loop, engine = toy_loop()
    loop.add(make_request([1], 2))
    monkeypatch.setattr(engine, "step", lambda inputs: 1 / 0)
    (output,) = loop.step()
    assert isinstance(output.error, EngineError) and "failed in a step" in str(output.error)
    assert not loop.busy


def test_an_interruption_gives_everything_back(monkeypatch):
    loop, engine = toy_loop()
    loop.add(make_request([1], 2))
    monkeypatch.setattr(engine, "step", lambda inputs: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        loop.step()
    loop.scheduler.check_integrity()
    (output,) = loop.step()
    assert "interrupted" in str(output.error)
    assert not loop.busy and not loop.scheduler.sequences


def test_the_next_step_runs_while_pieces_are_read():
    loop, engine = ahead_loop()
    first = loop.add(make_request([1, 2], 3))
    found = loop.step()
    assert [output.request_id for output in found] == [first] and engine.pending is not None
    # Between steps, and when a step is about to be planned, requests come and go.
    second, third = loop.add(make_request([3], 2)), 0

    def arrivals():
        nonlocal third
        third = loop.add(make_request([4], 2))
        loop.cancel(second)

    found += loop.step(arrivals) + run_all(loop)
    assert {output.request_id for output in found} == {first, third}
    assert list(answers(found)[third, 0]) == toy_greedy(engine.config, [4], 2)


def test_cancelling_the_last_request_leaves_nothing_behind():
    loop, engine = ahead_loop()
    ids = [loop.add(make_request([seed], 9)) for seed in range(3)]
    loop.step()
    for id_ in ids:
        loop.cancel(id_)
    assert not loop.busy and not loop.scheduler.sequences and engine.pending is None
    loop.scheduler.check_integrity()


def test_output_of_a_finished_step_is_returned_unless_its_request_is_cancelled():
    loop, engine = ahead_loop()
    mine, other = loop.add(make_request([1], 3)), loop.add(make_request([2], 3))
    outputs = loop.step()
    loop.settle()
    assert engine.pending is None and loop.scheduler.settled
    loop.cancel(other)
    outputs += run_all(loop)
    assert list(answers(outputs)[mine, 0]) == toy_greedy(engine.config, [1], 3)
    assert sum(output.request_id == other for output in outputs) == 1


def test_an_interruption_leaves_the_previous_output(monkeypatch):
    loop, engine = ahead_loop()
    id_ = loop.add(make_request([1], 9, logprobs=0))  # whose steps are not chained
    loop.step()
    launch = engine.launch

    def interrupted(inputs, samplings):
        monkeypatch.setattr(engine, "launch", launch)
        raise KeyboardInterrupt

    monkeypatch.setattr(engine, "launch", interrupted)
    with pytest.raises(KeyboardInterrupt):
        loop.step()
    piece, error = loop.step()
    assert piece.request_id == error.request_id == id_
    assert list(piece.piece.token_ids) == toy_greedy(engine.config, [1], 2)[1:] and "interrupted" in str(error.error)
    assert not loop.busy and not loop.scheduler.sequences


def test_logits_that_are_not_finite_end_one_request_only(monkeypatch):
    loop, engine = toy_loop()
    bad, good = loop.add(make_request([1], 3)), loop.add(make_request([2], 3))
    step = engine.step

    def spoil(inputs):
        logits = step(inputs)
        logits[0] = np.nan
        monkeypatch.setattr(engine, "step", step)
        return logits

    monkeypatch.setattr(engine, "step", spoil)
    outputs = run_all(loop)
    assert [output.request_id for output in outputs if output.error] == [bad]
    assert list(answers(outputs)[good, 0]) == toy_greedy(engine.config, [2], 3)


def test_what_never_fits_is_refused_at_once():
    loop, _ = toy_loop()
    with pytest.raises(RequestError, match="at most 96 tokens"):
        loop.add(make_request([1] * MAX_SEQ, 2))
    assert not loop.busy


@pytest.mark.parametrize("memory_bytes", [10_000, 1_700])
@pytest.mark.parametrize("layers", [HYBRID, PURE_ATTENTION, PURE_MAMBA])
def test_beams_find_what_a_search_from_scratch_finds(layers, memory_bytes):
    eos = (7, 20, 41)
    loop, engine = toy_loop(layers, eos=eos, memory_bytes=memory_bytes, max_rows=6)
    searches = {}
    for seed in range(3):
        prompt = [seed, seed + 1, 2]
        id_ = loop.add(make_request(prompt, 9, beam_width=3, n=2, length_penalty=0.6))
        searches[id_] = prompt
        loop.add(make_request([seed] * 30, 30))
    found = answers(run_all(loop))
    for id_, prompt in searches.items():
        best = beams_alone(engine.config, prompt, 9, 3, 0.6)
        assert [list(found[id_, choice]) for choice in range(2)] == best[:2]
