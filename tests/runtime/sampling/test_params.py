"""SamplingParams accepts what users write and names what is wrong."""

import dataclasses
import itertools

import numpy as np
import pytest

from hybridge.artifact.errors import RequestError
from hybridge.runtime.sampling import SamplingParams


def test_default_is_greedy_and_frozen() -> None:
    params = SamplingParams()
    assert params.greedy
    with pytest.raises(dataclasses.FrozenInstanceError):
        params.temperature = 1.0  # type: ignore[misc]


def test_single_values_and_numpy_scalars_are_normalised() -> None:
    params = SamplingParams(temperature=np.float32(0.5), top_k=np.int64(3), stop="x", stop_token_ids=7, seed=2**70)
    assert (params.temperature, params.top_k, params.stop, params.stop_token_ids) == (0.5, 3, ("x",), (7,))
    assert type(params.top_k) is int and not params.greedy
    assert SamplingParams(stop=["a", "b"]) == SamplingParams(stop=("a", "b"))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("temperature", float("inf")),
        ("temperature", "1"),
        ("temperature", True),
        ("top_k", -2),
        ("top_k", 1.5),
        ("top_k", True),
        ("top_p", 0.0),
        ("top_p", 1.01),
        ("min_p", -0.01),
        ("min_p", 1.01),
        ("repetition_penalty", 0),
        ("repetition_penalty", 1e-320),
        ("repetition_penalty", 1e39),
        ("length_penalty", 400.0),
        ("length_penalty", float("nan")),
        ("seed", -1),
        ("seed", 0.5),
        ("max_new_tokens", 0),
        ("stop", ""),
        ("stop", ["ok", ""]),
        ("stop", [1]),
        ("stop", 3),
        ("stop_token_ids", [-1]),
        ("stop_token_ids", "12"),
        ("ignore_eos", 1),
        ("logprobs", -1),
        ("logprobs", True),
        ("skip_special_tokens", None),
        ("n", 2**40),
        ("beam_width", 129),
        ("logprobs", 65),
        ("prompt_logprobs", -1),
        ("min_tokens", -1),
        ("presence_penalty", 2.1),
        ("frequency_penalty", -2.1),
        ("logit_bias", {1: 101}),
        ("logit_bias", {1: float("-inf")}),
        ("logit_bias", {-1: 1}),
        ("logit_bias", {"a": 1}),
        ("logit_bias", [1, 2]),
        ("logit_bias", dict.fromkeys(range(1025), 1)),
        ("bad_words", [""]),
        ("bad_words", ["a"] * 1025),
        ("bad_words", ["a" * 70_000]),
        ("allowed_token_ids", []),
        ("allowed_token_ids", [1.5]),
        ("logits_processors", [3]),
        ("logits_processors", [print] * 17),
        ("include_stop_str_in_output", 1),
        ("stop", ["a"] * 129),
        ("stop", ["a" * 9_000]),
        ("stop_token_ids", list(range(1025))),
        ("seed", 2**128),
        ("allowed_token_ids", range(2**40)),
        ("stop", itertools.repeat("a")),
        ("logit_bias", itertools.repeat((1, 1))),
    ],
)
def test_bad_value_is_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(RequestError, match=f"^{field}: expected .*found"):
        SamplingParams(**{field: value})  # type: ignore[arg-type]


def test_lists_and_mappings_have_one_form() -> None:
    bias: dict = {"7": 1, 3: -2.5}
    params = SamplingParams(logit_bias=bias, allowed_token_ids=[4, 4, 2], bad_words="x", top_k=-1)
    assert (params.logit_bias, params.allowed_token_ids) == (((7, 1.0), (3, -2.5)), (4, 2))
    assert (params.bad_words, params.top_k, params.logits_processors) == (("x",), 0, ())
    assert dataclasses.replace(params) == params and hash(params) == hash(dataclasses.replace(params))
    assert SamplingParams(logits_processors=print).logits_processors == (print,)
    assert not params.plain_greedy and SamplingParams(prompt_logprobs=1).plain_greedy


def test_other_names_are_taken_or_hinted_at() -> None:
    params = SamplingParams(max_tokens=7)
    assert params == SamplingParams(max_new_tokens=7) and vars(SamplingParams)["max_tokens"].fget(params) == 7
    assert dataclasses.replace(params, max_new_tokens=8).max_new_tokens == 8
    assert dataclasses.replace(params, max_new_tokens=None, max_tokens=9).max_new_tokens == 9
    for name, value, words in (
        ("best_of", 2, "best_of: .* use n"),
        ("do_sample", True, "do_sample: .* use temperature"),
        ("temprature", 1.0, "temprature: .* did you mean temperature"),
        ("spaces_between", True, "spaces_between: .* leave it out"),
    ):
        with pytest.raises(RequestError, match=words):
            SamplingParams(**{name: value})
    with pytest.raises(RequestError, match="max_tokens: expected it alone, found max_new_tokens too"):
        SamplingParams(max_tokens=1, max_new_tokens=2)


def test_parameters_that_contradict_each_other() -> None:
    with pytest.raises(RequestError, match="min_tokens: expected at most the 3 of max_new_tokens, found 4"):
        SamplingParams(min_tokens=4, max_new_tokens=3)
    for name, value in {
        "presence_penalty": 1,
        "frequency_penalty": 1,
        "min_tokens": 1,
        "logit_bias": {1: 1},
        "bad_words": "a",
        "allowed_token_ids": [1],
        "logits_processors": [print],
        "prompt_logprobs": 0,
        "temperature": 1,
        "logprobs": 0,
        "stop": "a",
        "repetition_penalty": 2,
    }.items():
        with pytest.raises(RequestError, match=f"beam_width: expected beams without {name}, found both"):
            SamplingParams(beam_width=2, **{name: value})
