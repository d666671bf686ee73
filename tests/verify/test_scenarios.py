"""Driving engines for verify: one that shows no inner values is compared by logits and states."""

from __future__ import annotations

import numpy as np
import pytest

from hybridge.artifact.dtypes import DType
from hybridge.verification import scenarios
from hybridge.verification.options import default_tolerance
from tests.runtime.toy_engine import ToyEngine, toy_config, toy_logits


@pytest.mark.parametrize("all_logits", [False, True])
def test_an_engine_without_inner_values_is_observed_without_hidden_states(all_logits: bool) -> None:
    engine = ToyEngine(toy_config(all_logits=all_logits))
    prompts = [np.array([3, 1, 4, 1, 5]), np.array([9])]
    for prompt, observed in zip(prompts, scenarios.one_shot(engine, prompts, None), strict=True):
        assert observed.hidden == () and observed.length == len(prompt)
        assert np.array_equal(observed.logits, toy_logits(engine.config, prompt))
        assert set(observed.states) == {binding.name for binding in engine.state_specs}


def test_engines_in_sixteen_bits_have_a_wider_tolerance() -> None:
    for engine in ("auto", "onnxruntime", "onnxruntime-portable"):
        assert default_tolerance(engine, DType.BFLOAT16) == 1e-4
    assert default_tolerance("tensorrt", DType.FLOAT32) == 1e-4
    assert 1e-4 < default_tolerance("tensorrt", DType.FLOAT16) < default_tolerance("tensorrt", DType.BFLOAT16)
