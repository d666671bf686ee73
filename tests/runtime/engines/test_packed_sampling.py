"""Sampling settings for CUDA kernels mean what the host computes."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridge.runtime.engines.packed_sampling import PackedSampling, merged_edits
from hybridge.runtime.sampling import Sampler, SamplingParams, TokenLogprobs
from hybridge.runtime.sampling.edits import bits_of, edited_rows
from hybridge.runtime.sampling.logprobs import token_logprobs
from hybridge.runtime.sampling.weights import exponentials, whole_weights
from hybridge.trt_plugins.kernels.fused.sampling import (
    BEST,
    IDLE,
    LISTED,
    SAMPLED,
    edit_type,
    result_type,
    settings_type,
)
from tests.support.effort import examples

VOCAB = 40


def packed(rows: int, lists: bool, edits: int = 64) -> tuple[PackedSampling, np.ndarray, np.ndarray, np.ndarray]:
    table = np.full(rows * (1 + lists) * settings_type().itemsize, 0xAB, np.uint8).view(settings_type())
    changes, masks = np.zeros(edits, edit_type()), np.zeros((rows, -(-VOCAB // 32)), np.uint32)
    return PackedSampling(table, changes, masks, VOCAB, lists), table, changes, masks


def edited(logits: np.ndarray, setting: np.void, changes: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """The logits [vocab] after the edits in the arrays, token by token, as in plugin_src/sampling/params.cuh."""
    scores = [float(logit) for logit in logits]
    if setting["masked"]:
        scores = [s if ok else -np.inf for s, ok in zip(scores, bits_of(mask, VOCAB), strict=True)]
    part = changes[setting["edits_begin"] : setting["edits_end"]]
    assert (np.diff(part["token"]) > 0).all()
    for token, bias, factor, minus in part.tolist():
        score = scores[token] + bias
        scores[token] = (score * factor if score < 0 else score / factor) - minus
    return np.array(scores)


@settings(deadline=None, max_examples=examples(60))
@given(
    st.lists(
        st.fixed_dictionaries(
            {},
            optional={
                "repetition_penalty": st.sampled_from([0.5, 1.3]),
                "presence_penalty": st.sampled_from([-2.0, 0.7]),
                "frequency_penalty": st.sampled_from([-0.5, 2.0]),
                "min_tokens": st.just(5),
                "logit_bias": st.dictionaries(st.integers(0, VOCAB - 1), st.sampled_from([-100.0, 1.5]), max_size=4),
                "allowed_token_ids": st.lists(st.integers(0, VOCAB - 1), min_size=1),
            },
        ),
        min_size=1,
        max_size=4,
    ),
    st.integers(0, 99),
)
def test_edits_are_those_of_the_host(given_: list[dict], seed: int) -> None:
    rng = np.random.default_rng(seed)
    logits = (3 * rng.standard_normal((len(given_), VOCAB))).astype(np.float32)
    samplers = [Sampler(SamplingParams(**params), rng.integers(0, VOCAB, 6).tolist(), [3], [(7,)]) for params in given_]
    for sampler in samplers:
        sampler.record(int(rng.integers(VOCAB)))
    samplings = {row: sampler.draw(VOCAB) for row, sampler in enumerate(samplers)}
    settings_, table, changes, masks = packed(len(given_), lists=False, edits=VOCAB * len(given_))
    assert settings_.fill(samplings) == set(samplings)
    for row, draw in samplings.items():
        expected = logits[row] if draw.edits is None else edited_rows(logits[row : row + 1], [draw.edits])[0]
        np.testing.assert_allclose(edited(logits[row], table[row], changes, masks[row]), expected, rtol=1e-6, atol=2e-5)


def test_each_row_has_its_own_settings() -> None:
    params = [
        SamplingParams(temperature=0.5, top_k=3, top_p=0.9, min_p=0.1, seed=2**127 + 5),
        SamplingParams(temperature=1.0, top_k=VOCAB, seed=1, logprobs=70 - 64),
        SamplingParams(logprobs=0),
    ]
    samplers = {row: Sampler(each) for row, each in zip((0, 2, 3), params, strict=True)}
    settings_, table, _, _ = packed(4, lists=True)
    for position in range(3):
        assert settings_.fill({row: sampler.draw(VOCAB) for row, sampler in samplers.items()}) == {0, 2, 3}
        assert table["kind"].tolist() == [SAMPLED, BEST, SAMPLED, BEST, IDLE, IDLE, LISTED, LISTED]
        assert table["row"].tolist() == [0, 1, 2, 3] * 2 and table["top_k"].tolist() == [3, 0, 0, 0, 0, 0, 6, 1]
        first = table[0]
        assert (int(first["key_high"]) << 64) + int(first["key_low"]) == 2**127 + 5
        assert first["position"] == table[2]["position"] == position
        assert (first["scale"], first["top_p"], first["min_p"]) == (2.0, 0.9, np.float32(0.1))
        for sampler in samplers.values():
            sampler.record(1)
    # Another request takes over a row.
    settings_.fill({0: Sampler(params[1]).draw(VOCAB)})
    assert table["kind"].tolist() == [SAMPLED, BEST, BEST, BEST, LISTED, IDLE, IDLE, IDLE] and table["position"][0] == 0


def test_what_has_no_room_is_left_to_the_host() -> None:
    settings_, table, _, _ = packed(3, lists=False, edits=5)
    biased = SamplingParams(temperature=1.0, logit_bias={token: 1.0 for token in range(4)})
    processed = SamplingParams(temperature=1.0, logits_processors=lambda tokens, logits: logits)
    samplings = {row: Sampler(params).draw(VOCAB) for row, params in enumerate((biased, biased, processed))}
    assert settings_.fill(samplings) == {0}
    assert table["kind"].tolist() == [SAMPLED, BEST, BEST] and settings_.edited == 4


def test_equal_masks_are_written_once() -> None:
    settings_, _, _, masks = packed(2, lists=False)
    sampler = Sampler(SamplingParams(allowed_token_ids=[1, 33]))
    for row, changed in ((1, [1]), (1, []), (0, [0])):
        settings_.fill({row: sampler.draw(VOCAB)})
        assert settings_.masked == changed and masks[row].tolist() == [2, 2]


def test_log_probabilities_are_those_of_the_host() -> None:
    logits = np.random.default_rng(0).standard_normal(VOCAB).astype(np.float32)
    order = np.argsort(-logits, kind="stable")
    results = np.zeros(4, result_type())
    tokens, values = np.zeros((4, 64), np.int32), np.zeros((4, 64), np.float32)
    drawn = int(order[3])  # the least likely token of the list
    results["token"][:2], results["logit"][0], results["listed"][2:] = (drawn, -1), logits[drawn], (4, -1)
    results["peak"][2] = logits.max()
    results["total"][2] = whole_weights(exponentials(logits, logits.max(), np.float32(1))).sum()
    tokens[2, :4], values[2, :4] = order[:4], logits[order[:4]]
    samplings = {row: Sampler(SamplingParams(temperature=1.0, logprobs=4)).draw(VOCAB) for row in range(2)}
    settings_, *_ = packed(2, lists=True)
    found = settings_.sampled(samplings, results, tokens, values)
    # The logits of row 1 are not finite.
    assert set(found) == {0}
    token, logprobs = found[0]
    expected = token_logprobs(logits, drawn, 4)
    assert token == drawn and isinstance(logprobs, TokenLogprobs) and [i for i, _ in logprobs.top] == order[:4].tolist()
    assert logprobs.top[-1] == (drawn, logprobs.logprob) and expected.top[-1] == (drawn, expected.logprob)
    np.testing.assert_allclose(
        [logprobs.logprob, *(v for _, v in logprobs.top)], [expected.logprob, *(v for _, v in expected.top)], atol=1e-6
    )


def test_edits_of_no_token_are_none() -> None:
    edits = Sampler(SamplingParams(min_tokens=2)).draw(VOCAB).edits
    assert edits is not None and len(merged_edits(edits)) == 0
