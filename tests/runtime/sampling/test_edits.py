"""Edits of logits are those of a token-by-token reference, and of transformers' processors where it has them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridge.artifact.errors import EngineError, RequestError
from hybridge.runtime.sampling import Sampler, SamplingParams, sample_rows
from hybridge.runtime.sampling.edits import edited_rows, mask_of
from hybridge.runtime.sampling.history import AnswerHistory
from tests.runtime.sampling.chi_square import chi_square_fits
from tests.runtime.sampling.edited import edited
from tests.support.effort import examples

VOCAB = 12
TOKENS = st.lists(st.integers(0, VOCAB - 1), max_size=9)
PENALTY = st.sampled_from([0.0, 0.0, -2.0, -0.3, 0.7, 2.0])
PARAMS = st.fixed_dictionaries(
    {},
    optional={
        "repetition_penalty": st.sampled_from([0.5, 1.3]),
        "presence_penalty": PENALTY,
        "frequency_penalty": PENALTY,
        "min_tokens": st.integers(0, 5),
        "logit_bias": st.dictionaries(st.integers(0, VOCAB - 1), st.sampled_from([-100.0, -1.5, 0.25, 100.0])),
        "allowed_token_ids": st.lists(st.integers(0, VOCAB - 1), min_size=1),
    },
)
WORDS = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=3).map(tuple), max_size=3)


def logits_of(rows: int, seed: int, vocab: int = VOCAB) -> np.ndarray:
    return (3 * np.random.default_rng(seed).standard_normal((rows, vocab))).astype(np.float32)


@settings(deadline=None, max_examples=examples(200))
@given(st.lists(st.tuples(PARAMS, TOKENS, TOKENS, WORDS), min_size=1, max_size=4), st.integers(0, 99))
def test_rows_are_edited_together_as_written_out(rows: list, seed: int) -> None:
    logits, edits, expected = logits_of(len(rows), seed), [], []
    for row, (given_, prompt, answer, words) in enumerate(rows):
        params = SamplingParams(**given_)
        history = AnswerHistory(params, prompt, (3, VOCAB + 5), words)
        for token in answer:
            history.add(token)
        edits.append(history.edits(VOCAB))
        expected.append(edited(logits[row], params, prompt, answer, (3,), words))
    before = logits.copy()
    # float32 sums of logits up to 110.
    np.testing.assert_allclose(edited_rows(logits, edits), expected, rtol=1e-6, atol=2e-5)
    np.testing.assert_array_equal(logits, before)


@pytest.mark.parametrize(
    ("params", "words", "processor"),
    [
        ({"min_tokens": 4}, [], lambda p: p.MinNewTokensLengthLogitsProcessor(0, 4, [5, 7], device="cpu")),
        ({}, [(2,), (1, 2), (4, 4, 9)], lambda p: p.NoBadWordsLogitsProcessor([[2], [1, 2], [4, 4, 9]])),
        ({"logit_bias": {3: 1.5, 0: -7}}, [], lambda p: p.SequenceBiasLogitsProcessor([[[3], 1.5], [[0], -7.0]])),
        (
            {"allowed_token_ids": [1, 4, 9]},
            [],
            lambda p: p.SuppressTokensLogitsProcessor([i for i in range(VOCAB) if i not in (1, 4, 9)], device="cpu"),
        ),
        ({"repetition_penalty": 1.4}, [], lambda p: p.RepetitionPenaltyLogitsProcessor(1.4)),
    ],
    ids=["min_tokens", "bad_words", "logit_bias", "allowed_token_ids", "repetition_penalty"],
)
def test_as_transformers_does_it(params: dict[str, Any], words: list, processor: Any) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is the oracle")
    torch = pytest.importorskip("torch", reason="transformers' processors need torch")
    oracle = processor(transformers.generation.logits_process)
    for count in range(8):
        answer, logits = [1, 4, 4, 1, 2, 0, 11][:count], logits_of(1, count)
        # transformers counts the prompt too; without one, both mean the answer.
        history = AnswerHistory(SamplingParams(**params), (), (5, 7), words)
        for token in answer:
            history.add(token)
        expected = oracle(torch.tensor([answer], dtype=torch.long), torch.tensor(logits.astype(np.float64)))
        found = edited_rows(logits, [history.edits(VOCAB)])
        np.testing.assert_allclose(found, expected.numpy(), rtol=1e-6)


def test_samples_follow_the_edited_distribution() -> None:
    params = {
        "temperature": 1.2,
        "presence_penalty": 1.5,
        "logit_bias": {2: 2.0, 5: -1.0},
        "allowed_token_ids": [2, 3, 5],
    }
    logits, samples = logits_of(1, 4)[0], 4_000
    first, second = np.zeros(VOCAB), np.zeros(VOCAB)
    for seed in range(samples // 2):
        sampler = Sampler(SamplingParams(seed=seed, **params))
        first[sampler.sample(logits)[0]] += 1
        second[sampler.sample(logits)[0]] += 1
    given_ = SamplingParams(**params)
    start = np.exp(edited(logits, given_, (), ()) / 1.2)
    start /= start.sum()
    after = np.zeros(VOCAB)
    for token in (2, 3, 5):
        weights = np.exp(edited(logits, given_, (), [token]) / 1.2)
        after += start[token] * weights / weights.sum()
    assert chi_square_fits(first, start * samples / 2) and chi_square_fits(second, after * samples / 2)


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_processors_see_the_answer_and_their_scores_decide(temperature: float) -> None:
    seen: list[tuple[int, ...]] = []

    def only_next(tokens: tuple[int, ...], logits: np.ndarray) -> np.ndarray:
        seen.append(tokens)
        assert logits.dtype == np.float32 and logits.shape == (VOCAB,)
        logits[np.arange(VOCAB) != len(tokens) + 3] = -np.inf
        return logits

    params = SamplingParams(temperature=temperature, logits_processors=only_next, logprobs=1)
    sampler, logits = Sampler(params, prompt=[9, 9]), logits_of(1, 1)[0]
    before = logits.copy()
    assert [sampler.sample(logits)[0] for _ in range(3)] == [3, 4, 5]
    assert seen == [(), (3,), (3, 4)]
    np.testing.assert_array_equal(logits, before)


class Unprintable(Exception):
    """An error whose message fails, and that fails with itself when it is made an array."""

    def __str__(self) -> str:
        raise self

    def __array__(self, *_: object, **__: object) -> np.ndarray:
        raise self


def raise_unprintable() -> None:
    raise Unprintable


@pytest.mark.parametrize(
    ("processor", "words"),
    [
        (lambda tokens, logits: None, r"logits_processors\[0\]: expected logits \[12\]"),
        (lambda tokens, logits: logits[:3], r"expected logits \[12\] .* found float32\[3\]"),
        (lambda tokens, logits: logits.astype(int), r"expected logits \[12\] .* found int"),
        (lambda tokens, logits: 1 / 0, r"logits_processors\[0\]: expected logits, found ZeroDivisionError"),
        (lambda tokens, logits: [[1], [2, 3]], r"logits_processors\[0\]: .* found no array \(ValueError"),
        (lambda tokens, logits: raise_unprintable(), r"logits_processors\[0\]: .* found Unprintable: no message"),
        (lambda tokens, logits: Unprintable(), r"logits_processors\[0\]: .* found no array \(Unprintable: no message"),
        (lambda tokens, logits: logits * np.nan, r"logits_processors\[0\]: .* finite or -inf, found nan at token 0"),
        (lambda tokens, logits: logits + np.inf, r"logits_processors\[0\]: .* finite or -inf, found inf at token 0"),
        (lambda tokens, logits: np.full(VOCAB, 1e39), r"logits_processors\[0\]: .* found inf at token 0"),
        (lambda tokens, logits: np.full_like(logits, -np.inf), "expected a token that can be sampled, found none"),
    ],
)
def test_a_bad_processor_is_an_error_of_its_request(processor: Any, words: str) -> None:
    samplers = [Sampler(SamplingParams(logits_processors=processor)), *(Sampler(SamplingParams()) for _ in range(4))]
    logits = logits_of(5, 2)
    bad, *others = sample_rows([sampler.draw(VOCAB) for sampler in samplers], logits)
    assert isinstance(bad, RequestError)
    with pytest.raises(RequestError, match=words):
        raise bad
    assert [token for token, _ in others] == logits[1:].argmax(1).tolist()  # type: ignore[misc]


def test_no_token_left_and_non_finite_logits_are_different_errors() -> None:
    params = SamplingParams(allowed_token_ids=[4])
    with pytest.raises(RequestError, match="found none"):
        Sampler(params, bad_words=[(4,)]).sample(logits_of(1, 0)[0])
    spoilt = logits_of(1, 0)[0]
    spoilt[3] = np.nan  # not allowed, so that an edit hides it
    rows = sample_rows([Sampler(params).draw(VOCAB)] * 5, np.stack([spoilt] * 5))
    assert all(isinstance(row, EngineError) for row in rows)


EDITS: list[dict[str, Any]] = [
    {},
    {"presence_penalty": 0.5},
    {"frequency_penalty": 1.0, "logprobs": 2},
    {"logit_bias": {1: 3.0}},
    {"allowed_token_ids": [1, 5, 6, 9, 11]},
    {"repetition_penalty": 1.2, "top_k": 3},
    {"logits_processors": lambda tokens, logits: -logits},
]


@settings(deadline=None, max_examples=examples(40))
@given(
    st.lists(st.tuples(st.sampled_from(EDITS), st.sampled_from([0.0, 0.8]), st.integers(0, 9)), min_size=1, max_size=20)
)
def test_rows_sampled_together_are_sampled_as_alone(rows: list) -> None:
    logits = logits_of(len(rows), 7, 130)
    params = [SamplingParams(temperature=t, seed=s, **edits) for edits, t, s in rows]
    alone, together = ([Sampler(each, (1, 2)) for each in params] for _ in range(2))
    for shift in range(4):
        moved = np.roll(logits, shift, axis=1)
        found = sample_rows([sampler.draw(130) for sampler in together], moved)
        assert found == [s.sample(row) for s, row in zip(alone, moved, strict=True)]
        for sampler, (token, _) in zip(together, found, strict=True):  # type: ignore[misc]
            sampler.record(token)


class Alternating:
    """Even tokens, then odd ones, and so on."""

    def __init__(self, offset: int = 0) -> None:
        self._offset = offset

    def mask(self) -> np.ndarray:
        return mask_of(np.arange(self._offset, VOCAB, 2), VOCAB)

    def accept(self, token: int) -> None:
        self._offset = 1 - self._offset

    def fork(self) -> Alternating:
        return Alternating(self._offset)


@settings(deadline=None, max_examples=examples(100))
@given(PARAMS, TOKENS, TOKENS, st.lists(st.integers(0, VOCAB - 1), max_size=4), WORDS, st.booleans())
def test_samplings_after_draft_tokens_are_those_after_the_same_answer(
    given_: dict, prompt: list[int], answer: list[int], drafts: list[int], words: list, changing: bool
) -> None:
    """Scores of tokens after draft tokens, up to one that cannot be sampled, are those of the written-out edits."""
    more: dict[str, Any] = {"allowed_tokens": Alternating} if changing else {}
    params = SamplingParams(temperature=1.0, seed=1, **given_, **more)
    sampler, follower = (Sampler(params, prompt, (3,), words) for _ in range(2))
    for token in answer:
        for each in (sampler, follower):
            each.draw(VOCAB)
            each.record(token)
    logits = logits_of(1, 5)[0]
    before = sampler.draw(VOCAB).scores(logits)
    samplings = sampler.samplings(VOCAB, drafts)
    for place, how in enumerate(samplings):
        expected = follower.draw(VOCAB)
        np.testing.assert_array_equal(how.scores(logits), expected.scores(logits))
        assert how.words is not None and expected.words is not None
        assert (how.position, how.words.key) == (expected.position, expected.words.key)
        if place < len(drafts):
            allowed = np.isfinite(expected.scores(logits)[drafts[place]])
            assert allowed == (place + 1 < len(samplings))
            follower.record(drafts[place])
    # Nothing was recorded.
    (after,) = sampler.samplings(VOCAB, [])
    assert after.position == len(answer)
    np.testing.assert_array_equal(after.scores(logits), before)


class Unforkable(Alternating):
    """Without a copy."""

    fork = None  # type: ignore[assignment]


@pytest.mark.parametrize("more", [{"allowed_tokens": Unforkable}, {"logits_processors": lambda tokens, logits: logits}])
def test_what_follows_draft_tokens_may_be_unknown(more: dict[str, Any]) -> None:
    sampler = Sampler(SamplingParams(temperature=1.0, **more))
    assert len(sampler.samplings(VOCAB, [2, 3])) == 1
    assert [how.position for how in Sampler(SamplingParams(temperature=1.0)).samplings(VOCAB, [2, 3])] == [0, 1, 2]
