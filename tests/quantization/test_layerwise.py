"""Inputs of matrices, found layer by layer, are those of the whole model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from hybridge.artifact.errors import EngineError
from hybridge.quantization.input_products import InputProducts
from hybridge.quantization.layerwise import LayerWalk
from hybridge.verification.transformers_model import TransformersModel
from tests.support.effort import sample
from tests.support.tiny_models import BASE_CONFIGS, EXPERTS, save_tiny_model

WITH_EXPERTS = ("nemotron_h experts", "qwen3_next experts")


@pytest.mark.parametrize("family", sample([*BASE_CONFIGS, *WITH_EXPERTS], on_push=("bamba", "nemotron_h", "zamba")))
def test_inputs_are_those_of_the_whole_model(tmp_path: Path, family: str) -> None:
    model_type = family.split()[0]
    extra = EXPERTS[model_type] if "experts" in family else {}
    checkpoint = save_tiny_model(tmp_path / "checkpoint", model_type, dtype="bfloat16", **extra)
    model = TransformersModel(checkpoint)
    windows = list(np.random.default_rng(0).integers(0, 97, (3, 19)))
    linear = {name: m for name, m in model.model.named_modules() if type(m) is model.torch.nn.Linear}
    whole, walked = InputProducts(linear), InputProducts(linear)
    with whole.collected(), model.torch.no_grad():
        for window in windows:
            model.model(model.torch.from_numpy(window)[None], use_cache=False)
            whole.next_window()
    walk = LayerWalk(model, windows)
    with walked.collected():
        for index in range(len(model.base.layers)):
            walk.run(index, walked.next_window)
        for hidden in walk.head_inputs():
            walked.add("lm_head", hidden)
            walked.next_window()
    for module in linear:
        expected, found = whole.of(module), walked.of(module)
        if expected is None:
            # Mamba multiplies by this weight without a call of its module; zamba2 has adapters that it does not call.
            assert found is None and (module.endswith(".dt_proj") or "_adapter_list." in module)
            continue
        # zaya projects a token of zeros before each sequence.
        count = 60 if ".qkv_proj." in module else 57
        assert expected is not None and found is not None and found.tokens == expected.tokens == count
        np.testing.assert_allclose(found.sums, expected.sums, rtol=1e-4, atol=1e-4 * float(expected.sums.abs().max()))
    # Mamba alone has no input that two matrices share, nor have fused projections.
    seen = [module for module in linear if walked.of(module) is not None]
    assert (len(walked.groups) < len(seen)) is ("mamba" not in family and family != "phi3")


def test_too_little_memory_is_not_the_checkpoints_fault(tmp_path: Path) -> None:
    model = TransformersModel(save_tiny_model(tmp_path / "checkpoint", "llama"))
    with (
        pytest.raises(EngineError, match=r"cannot run it .OutOfMemoryError: CUDA out of memory"),
        model.failures("run"),
    ):
        raise torch.OutOfMemoryError("CUDA out of memory")


def test_factor_is_that_of_the_inverse() -> None:
    """The upper Cholesky factor of the inverse of the damped sums, in float64."""
    inputs = np.random.default_rng(0).normal(size=(60, 23)).astype(np.float32)
    products = InputProducts({})
    products.add("a", torch.from_numpy(inputs))
    found = products.of("a")
    assert found is not None
    sums = found.sums.double().numpy()
    damped = sums + 0.01 * np.diag(sums).mean() * np.eye(23)
    expected = np.linalg.cholesky(np.linalg.inv(damped)).T
    np.testing.assert_allclose(found.factor(), expected, rtol=1e-4, atol=1e-6)
