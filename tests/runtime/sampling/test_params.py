"""SamplingParams accepts what users write and names what is wrong."""

import dataclasses

import numpy as np
import pytest

from artifact.errors import RequestError
from runtime.sampling import SamplingParams


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
        ("top_k", -1),
        ("top_k", 1.5),
        ("top_k", True),
        ("top_p", 0.0),
        ("top_p", 1.01),
        ("min_p", -0.01),
        ("min_p", 1.01),
        ("repetition_penalty", 0),
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
    ],
)
def test_bad_value_is_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(RequestError, match=f"^{field}: expected .*found"):
        SamplingParams(**{field: value})  # type: ignore[arg-type]
