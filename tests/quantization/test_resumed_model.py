"""Logits with other weights, computed from the first changed layer on, are those of the whole model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hybridge.artifact.errors import EngineError
from hybridge.quantization import sensitivity
from hybridge.quantization.resumed_model import ResumedModel
from hybridge.quantization.sensitivity import compared_tokens, mean_divergence
from hybridge.verification.transformers_model import TransformersModel
from tests.support.effort import sample
from tests.support.tiny_models import BASE_CONFIGS, save_tiny_model

TOKENS = np.random.default_rng(0).integers(0, 97, (2, 11))


def whole(model: TransformersModel) -> torch.Tensor:
    with torch.no_grad():
        return model.model(torch.from_numpy(TOKENS), use_cache=False).logits.float()


def change(module: Any) -> None:
    """Half the weights of ``module``, and of no other that shares them."""
    module.weight = torch.nn.Parameter(module.weight.data * 0.5)


@pytest.mark.parametrize("family", sample(list(BASE_CONFIGS), on_push=("nemotron_h",)))
def test_logits_are_those_of_the_whole_model(tmp_path: Path, family: str) -> None:
    model = TransformersModel(save_tiny_model(tmp_path / "checkpoint", family))
    resumed = ResumedModel(model, TOKENS)
    expected = whole(model)
    torch.testing.assert_close(resumed.reference, expected, rtol=0, atol=0)
    linear = [module for module in model.model.modules() if type(module) is torch.nn.Linear]
    layers = [resumed.first_layer([module]) for module in linear]
    assert max(layers) == len(model.base.layers) - 1
    # From the last layer to the first, and one of the last again.
    chosen = sorted(range(len(linear)), key=lambda i: -layers[i])[:: max(1, len(linear) // 6)]
    for index in [*chosen, chosen[0]]:
        module, weight = linear[index], linear[index].weight
        resumed.prepare([module])
        change(module)
        changed = whole(model)
        torch.testing.assert_close(resumed.logits(), changed, rtol=0, atol=0)
        module.weight = weight


def test_layers_that_pass_more_than_they_return(tmp_path: Path) -> None:
    """A layer that adds what it finds of an earlier one: nothing is skipped, though no run fails."""
    model = TransformersModel(save_tiny_model(tmp_path / "checkpoint", "qwen3"))
    first, last = model.base.layers[0], model.base.layers[-1]
    inputs: list[torch.Tensor] = []
    first.register_forward_pre_hook(lambda _module, given: inputs.append(given[0]))
    last.register_forward_hook(lambda _module, _inputs, output: output + inputs.pop() if inputs else output)
    resumed = ResumedModel(model, TOKENS)
    change(last.mlp.up_proj)
    resumed.prepare([last.mlp.up_proj])
    torch.testing.assert_close(resumed.logits(), whole(model), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("parameters", "vocab_size", "tokens"),
    [(150_000_000, 32768, 1024), (850_000_000, 65536, 323), (9_000_000_000, 131072, 256), (1000, 2**22, 64)],
)
def test_compared_tokens(parameters: int, vocab_size: int, tokens: int) -> None:
    assert compared_tokens(parameters, vocab_size) == tokens


def test_mean_divergence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compared with the definition in numpy, over more numbers than a block holds; -inf excludes a token."""
    monkeypatch.setattr(sensitivity, "_BLOCK", 5000)
    rng = np.random.default_rng(0)
    one, two = rng.normal(0, 3, (2, 2, 3, 1009)).astype(np.float32)
    one[0, 0, :7] = two[0, 0, :5] = -np.inf
    p, q = (np.exp(x.astype(np.float64)) for x in (one, two))
    p, q = p / p.sum(-1, keepdims=True), q / q.sum(-1, keepdims=True)
    used = p > 0
    expected = (p[used] * np.log(p[used] / q[used])).sum() / 6
    assert mean_divergence(torch.from_numpy(one), torch.from_numpy(two)) == pytest.approx(expected, rel=1e-9)
    two[1, 2, 3] = np.nan
    with pytest.raises(EngineError, match="expected finite logits, found nan"):
        mean_divergence(torch.from_numpy(one), torch.from_numpy(two))
