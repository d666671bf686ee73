"""Requests that wait for each other, end in each other's steps, or fail by themselves."""

from __future__ import annotations

import contextlib
from itertools import count
from typing import Any

import numpy as np
import pytest

from hybridge.artifact.errors import EngineError, RequestError
from hybridge.runtime.generation import GeneratedSequence
from hybridge.runtime.scheduler import Fcfs, Priority
from hybridge.runtime.serving import loop as loop_module
from hybridge.runtime.serving.live_requests import LiveRequests
from hybridge.runtime.serving.loop import ServingLoop
from hybridge.runtime.serving.request import Output
from hybridge.runtime.serving.step_in_flight import StepInFlight
from hybridge.runtime.serving.worker import ServingWorker
from tests.runtime.serving.beams_alone import beams_alone
from tests.runtime.serving.test_prefix_cache import poison
from tests.runtime.serving.test_speculation import MOST, speculating
from tests.runtime.serving.toy_loop import ahead_loop, answers, make_request, run_all, toy_loop
from tests.runtime.toy_engine import HYBRID
from tests.runtime.toy_engine import PURE_ATTENTION as ATTENTION
from tests.runtime.toy_engine import PURE_MAMBA as RECURRENT
from tests.runtime.toy_paged_engine import toy_greedy


@pytest.mark.parametrize("policy", [Fcfs(), Priority()], ids=["fcfs", "priority"])
@pytest.mark.parametrize("layers", [HYBRID, ATTENTION, RECURRENT], ids=["hybrid", "attention", "recurrent"])
@pytest.mark.parametrize("swap_bytes", [0, 10_000])
def test_searches_that_need_each_others_rows_take_turns(layers, swap_bytes, policy) -> None:
    """Three searches get a row each at first, and then every one of them waits for two more."""
    loop, engine = toy_loop(layers, max_rows=3, policy=policy, swap_bytes=swap_bytes)
    prompts = [[seed, 4, 2] for seed in range(3)]
    for prompt in prompts:
        loop.add(make_request(prompt, 6, beam_width=3, n=3))
    found = answers(run_all(loop))
    for id_, prompt in enumerate(prompts):
        assert [list(found[id_, choice]) for choice in range(3)] == beams_alone(engine.config, prompt, 6, 3, 1.0)


def test_an_error_of_one_request_loses_no_piece_of_later_ones(monkeypatch) -> None:
    loop, engine = toy_loop()
    ids = [loop.add(make_request([seed], 3)) for seed in range(4)]
    step = engine.step

    def spoil(inputs):
        logits = step(inputs)
        logits[1] = np.nan
        monkeypatch.setattr(engine, "step", step)
        return logits

    monkeypatch.setattr(engine, "step", spoil)
    outputs = run_all(loop)
    assert [output.request_id for output in outputs if output.error] == [1]
    # ``answers`` compares the tokens of the pieces with those of the answer.
    expected = {(id_, 0): tuple(toy_greedy(engine.config, [id_], 3)) for id_ in ids if id_ != 1}
    assert answers(outputs) == expected


@pytest.mark.parametrize("part", ["choose", "piece"])
def test_an_error_in_a_token_ends_its_request_only(monkeypatch, part) -> None:
    loop, engine = toy_loop()
    bad, good = loop.add(make_request([1], 4, n=2)), loop.add(make_request([2], 4))
    original, calls = getattr(GeneratedSequence, part), 0

    def breaking(self, *args):
        nonlocal calls
        calls += self.prompt_ids == (1,)
        if self.prompt_ids == (1,) and calls == 3:
            raise ValueError("no such text")
        return original(self, *args)

    monkeypatch.setattr(GeneratedSequence, part, breaking)
    outputs = run_all(loop)
    (error,) = [output for output in outputs if output.error]
    assert error.request_id == bad and "no such text" in str(error.error)
    assert [output for output in outputs if output.request_id == bad][-1] is error
    assert answers(outputs) == {(good, 0): tuple(toy_greedy(engine.config, [2], 4))}
    assert loop.scheduler.manager.pool.used == loop.scheduler.manager.slots.used == 0


@pytest.mark.parametrize("part", ["choose", "piece"])
def test_an_error_in_a_draft_token_ends_its_request_only(monkeypatch, part) -> None:
    """And what the prefix cache gets of it ends before the first draft token that was wrong."""
    loop, engine, _ = speculating(HYBRID, [1], prefix_cache="radix")
    bad, good = loop.add(make_request([1], 9)), loop.add(make_request([2], 9))
    original, calls = getattr(GeneratedSequence, part), 0

    def breaking(self, *args):
        nonlocal calls
        calls += self.prompt_ids == (1,)
        if self.prompt_ids == (1,) and calls == 3:
            raise (ValueError if part == "choose" else EngineError)("no such text")
        return original(self, *args)

    monkeypatch.setattr(GeneratedSequence, part, breaking)
    outputs = run_all(loop)
    (error,) = [output for output in outputs if output.error]
    assert error.request_id == bad and "no such text" in str(error.error)
    assert answers(outputs) == {(good, 0): tuple(toy_greedy(engine.config, [2], 9))}
    text = [1, *toy_greedy(engine.config, [1], 9)]
    again = loop.add(make_request(text[:8], 2))
    outputs = run_all(loop)
    assert answers(outputs) == {(again, 0): tuple(text[8:10])}
    assert next(o.piece.generation.cached_tokens for o in outputs if o.piece and o.piece.generation) == 3


def test_a_drafter_that_is_interrupted_loses_no_piece() -> None:
    loop, engine, drafter = speculating(HYBRID, [2], ahead=True)
    ids = [loop.add(make_request([1], 12)), loop.add(make_request([2], 12, speculative_tokens=0))]
    outputs, propose, calls = [], drafter.propose, 0

    def interrupted(requests):
        nonlocal calls
        calls += 1
        if calls in (1, 3):
            raise KeyboardInterrupt
        return propose(requests)

    drafter.propose = interrupted
    while loop.busy:
        try:
            outputs += loop.step()
        except KeyboardInterrupt:
            continue
    assert calls > 3
    assert answers(outputs) == {(id_, 0): tuple(toy_greedy(engine.config, [id_ + 1], 12)) for id_ in ids}


def test_cancelling_during_a_draft_step_leaves_other_requests_alone() -> None:
    loop, engine, _ = speculating(HYBRID, [MOST, 1], ahead=True)
    gone, stays = loop.add(make_request([1, 2], 30)), loop.add(make_request([3], 30))
    outputs = loop.step() + loop.step()
    assert engine.pending is not None
    loop.cancel(gone)
    outputs += run_all(loop)
    assert not [output for output in outputs if output.error]
    assert answers(outputs) == {(stays, 0): tuple(toy_greedy(engine.config, [3], 30))}


def test_draft_tokens_of_a_cancelled_step_never_reach_the_prefix_cache() -> None:
    loop, engine, _ = speculating(HYBRID, [0], ahead=True, prefix_cache="radix")
    gone, _ = loop.add(make_request([1, 2], 30)), loop.add(make_request([3], 30))
    for _ in range(4):
        loop.step()
    loop.cancel(gone)
    run_all(loop)
    text = [1, 2, *toy_greedy(engine.config, [1, 2], 12)]
    again = loop.add(make_request(text, 5))
    outputs = run_all(loop)
    assert answers(outputs) == {(again, 0): tuple(toy_greedy(engine.config, text, 5))}
    # Two steps for its prompt, and a token of each one after: the state after the last of them is there.
    assert next(o.piece.generation.cached_tokens for o in outputs if o.piece and o.piece.generation) == 5


def test_an_answer_that_fails_in_a_draft_step_fails_its_own_request_only(monkeypatch) -> None:
    loop, engine, _ = speculating(HYBRID, [MOST])
    bad, good = loop.add(make_request([1, 2], 30, n=2)), loop.add(make_request([3], 30))
    outputs = loop.step()
    step = engine.step

    def spoil(inputs):
        logits = step(inputs)
        logits[2] = np.nan
        monkeypatch.setattr(engine, "step", step)
        return logits

    monkeypatch.setattr(engine, "step", spoil)
    outputs += run_all(loop)
    assert [output.request_id for output in outputs if output.error] == [bad]
    assert answers(outputs) == {(good, 0): tuple(toy_greedy(engine.config, [3], 30))}


def test_a_prompt_with_forks_to_come_has_no_draft_tokens() -> None:
    loop, engine, drafter = speculating(HYBRID, [MOST], max_tokens=12, max_rows=4)
    prompt = [5] * 13
    loop.add(make_request(prompt, 9, n=3))
    loop.step()
    assert [sequence.pending for sequence in loop.scheduler.sequences.values()] == [1] and not drafter.calls
    expected = tuple(toy_greedy(engine.config, prompt, 9))
    assert answers(run_all(loop)) == {(0, choice): expected for choice in range(3)}


def test_a_step_that_fails_after_its_launch_has_ended_before_the_next_one_begins(monkeypatch) -> None:
    loop, engine = ahead_loop(prefix_cache="radix")
    loop.add(make_request([1, 2, 3, 4, 5], 9))

    def broken(sources, targets):
        assert engine.pending is not None
        raise EngineError("no copy")

    monkeypatch.setattr(engine, "copy_slots", broken)
    (output,) = loop.step()
    assert "no copy" in str(output.error) and engine.pending is None and engine.steps == 1


def test_the_step_in_progress_ends_before_what_an_interrupted_launch_frees_is_used(monkeypatch) -> None:
    """Of two sequences of that step, the one with the next token fails, and the one that has ended has its answer."""
    loop, engine = ahead_loop()
    ends, fails = loop.add(make_request([1, 2, 3], 3)), loop.add(make_request([4, 5, 6], 9))
    launch_next, outputs = engine.launch_next, list[Output]()

    def interrupted(result, inputs, feeding):
        if len(inputs.input_ids) > 1:
            return launch_next(result, inputs, feeding)
        raise KeyboardInterrupt

    monkeypatch.setattr(engine, "launch_next", interrupted)
    with pytest.raises(KeyboardInterrupt):
        while True:
            outputs += loop.step()
    assert engine.pending is None
    monkeypatch.undo()
    poison(loop, engine)
    outputs += run_all(loop)
    errors = {output.request_id: output.error for output in outputs if output.error is not None}
    assert list(errors) == [fails] and "interrupted" in str(errors[fails])
    tokens = [token for output in outputs if output.request_id == ends for token in output.piece.token_ids]
    assert tokens == toy_greedy(engine.config, [1, 2, 3], 3)


def test_a_request_for_which_there_is_no_room_any_more_ends_alone(monkeypatch) -> None:
    """Between its check and the step, something else was promised the memory."""
    loop, engine = toy_loop()
    worker = ServingWorker(loop, lambda: None)
    refused: list[Output] = []
    outputs: list[Output] = []

    def refuse(request):
        raise RequestError("no room")

    def add_in_the_thread() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(loop.scheduler.capacity, "check", refuse)
            worker._add("a", make_request([1], 3), 0.0, refused.append)

    worker.call(add_in_the_thread).result(30)
    worker.add("b", make_request([2], 3), 0.0, outputs.append)
    while not any(output.piece is not None and output.piece.generation for output in outputs):
        worker.call(lambda: None).result(30)
    worker.close()
    assert isinstance(refused[0].error, EngineError) and "no room" in str(refused[0].error)
    assert list(answers(outputs).values()) == [tuple(toy_greedy(engine.config, [2], 3))]


@pytest.mark.parametrize("kind", [KeyboardInterrupt, MemoryError])
@pytest.mark.parametrize(
    ("owner", "part"),
    [
        (loop_module, "sampled_rows"),
        (ServingLoop, "_choose"),
        (ServingLoop, "_settle"),
        (ServingLoop, "_follow"),
        (StepInFlight, "__init__"),
        (LiveRequests, "make_pieces"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
@pytest.mark.parametrize("at", range(1, 10))
def test_a_loop_goes_on_after_an_error_between_two_parts_of_a_step(
    owner: object, part: str, at: int, kind: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The step in progress and one planned behind it end with their requests, or go on."""
    loop, engine = ahead_loop(max_rows=3)
    original, calls = getattr(owner, part), count(1)

    def failing(*given: Any, **named: Any) -> Any:
        if next(calls) == at:
            raise kind
        return original(*given, **named)

    lengths = {loop.add(make_request([index], new)): new for index, new in enumerate((4, 9, 6, 5))}
    outputs = list[Output]()
    with monkeypatch.context() as patch, contextlib.suppress(kind):
        patch.setattr(owner, part, failing)
        while loop.busy:
            outputs += loop.step()
    poison(loop, engine)
    outputs += run_all(loop)
    found, errors = answers(outputs), {output.request_id for output in outputs if output.error}
    assert found == {(id_, 0): tuple(toy_greedy(engine.config, [id_], lengths[id_])) for id_ in lengths.keys() - errors}
    manager = loop.scheduler.manager
    assert manager.pool.available == manager.pool.num_blocks and not manager.slots.used
    again = loop.add(make_request([7], 5))
    assert answers(run_all(loop)) == {(again, 0): tuple(toy_greedy(engine.config, [7], 5))}
