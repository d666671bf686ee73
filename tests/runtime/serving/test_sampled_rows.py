"""Rows whose tokens need logits: these are read once per step, and the tokens are those of each row alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hybridge.artifact.errors import EngineError
from hybridge.runtime.engines.step_result import ArrayResult
from hybridge.runtime.sampling import Sampler, SamplingParams
from tests.runtime.serving.toy_loop import answers, make_request, run_all, toy_loop
from tests.runtime.toy_paged_engine import toy_greedy, toy_logits

FILTERS: list[dict[str, Any]] = [
    {},
    {"top_k": 9},
    {"top_k": 9, "top_p": 0.8},
    {"repetition_penalty": 1.3},
    {"min_p": 0.02},
]


class OneRead(ArrayResult):
    """Counts the reads."""

    reads = 0
    fails = False

    def logits(self, index: int) -> np.ndarray:
        raise AssertionError("a row is read by itself")

    def rows(self, indices) -> np.ndarray:
        OneRead.reads += 1
        if OneRead.fails:
            raise EngineError("the logits are gone")
        return super().rows(indices)


@pytest.fixture
def loop_and_engine(monkeypatch):
    loop, engine = toy_loop(max_rows=16)
    monkeypatch.setattr(OneRead, "reads", 0)
    monkeypatch.setattr(OneRead, "fails", False)
    monkeypatch.setattr(engine, "launch", lambda inputs, samplings: OneRead(engine.step(inputs)))
    return loop, engine


def test_a_mixed_batch_is_read_once_and_sampled_as_each_row_alone(loop_and_engine) -> None:
    loop, engine = loop_and_engine
    requests = {}
    for seed in range(12):
        options = {"temperature": 0.3 + seed / 10, "seed": seed, **FILTERS[seed % 5]}
        requests[loop.add(make_request([seed, 2], 9, **options))] = ([seed, 2], SamplingParams(**options))
    greedy = loop.add(make_request([7], 9))
    best = loop.add(make_request([8], 4, beam_width=2))
    found = answers(run_all(loop))
    for id_, (prompt, params) in requests.items():
        sampler, tokens = Sampler(params, prompt), list(prompt)
        for _ in range(9):
            tokens.append(sampler.sample(toy_logits(engine.config, tokens))[0])
        assert list(found[id_, 0]) == tokens[2:]
    assert list(found[greedy, 0]) == toy_greedy(engine.config, [7], 9) and (best, 0) in found
    # Once for the sampled ones, and once for the beams, which last 4 steps.
    assert OneRead.reads == loop.steps + 4 == 13


def test_greedy_rows_read_no_logits(loop_and_engine) -> None:
    loop, _ = loop_and_engine
    loop.add(make_request([1], 5))
    run_all(loop)
    assert not OneRead.reads


def test_unreadable_logits_end_the_requests_that_need_them(loop_and_engine) -> None:
    loop, engine = loop_and_engine
    ids = [loop.add(make_request([seed], 5, temperature=1.0, seed=seed)) for seed in range(3)]
    greedy = loop.add(make_request([9], 5))
    outputs = loop.step()
    OneRead.fails = True
    outputs += run_all(loop)
    assert [output.request_id for output in outputs if output.error] == ids
    assert answers(outputs) == {(greedy, 0): tuple(toy_greedy(engine.config, [9], 5))}
