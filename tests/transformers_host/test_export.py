"""engine="export": the model's own forward, traced into buckets that a second process only loads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from hybridge import accelerate
from hybridge.artifact.errors import RequestError, UnsupportedError
from hybridge.transformers_host.export_backend import ExportBackend
from tests.support.effort import sample
from tests.support.family_layers import WINDOWED
from tests.support.tiny_models import BASE_CONFIGS, save_tiny_model
from tests.transformers_host.conftest import LoadModel
from tests.transformers_host.generations import BATCH, BEAMS, GREEDY_BATCH, PROMPT, SAMPLED, exactly, generated

SMALL: dict[str, dict[str, Any]] = {"llama": {"num_hidden_layers": 1}, "nemotron_h": {"hybrid_override_pattern": "M*"}}
LIMITS: dict[str, Any] = {"max_cache_len": 96, "max_batch_size": 4}


@pytest.fixture(scope="module")
def buckets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("buckets")


# On push attention alone: torch takes 40 seconds to trace and load the prompts of a Mamba2 layer.
@pytest.fixture(scope="module", params=sample(SMALL, on_push=("llama",)))
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("small"), request.param, **SMALL[request.param])


def load(checkpoint: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()


def test_same_tokens_and_a_second_model_does_not_trace(checkpoint: Path, buckets: Path) -> None:
    model = load(checkpoint)
    repeating = torch.tensor([[5, 17, 40, 5, 17, 40, 5, 17]])
    ways: dict[str, dict[str, Any]] = {"greedy": GREEDY_BATCH, "sampled": SAMPLED, "beams": BEAMS}
    plain: dict[str, Any] = {"input_ids": repeating, "do_sample": False, **exactly(12)}
    ways["assisted"], ways["in chunks"] = {**plain, "prompt_lookup_num_tokens": 3}, {**plain, "prefill_chunk_size": 3}
    expected = {name: generated(model, **way) for name, way in ways.items() if name != "assisted"}
    expected["assisted"] = generated(model, **plain)
    for traced in (4, 0):
        model = load(checkpoint)
        with accelerate(model, "export", cache_folder=buckets, **LIMITS) as fast:
            for name, way in ways.items():
                assert generated(fast, **way) == expected[name], name
            assert isinstance(fast.base_model.backend, ExportBackend)
            assert fast.base_model.backend.traced == traced


@pytest.mark.slow
def test_recurrent_layers_alone(buckets: Path) -> None:
    model = load(save_tiny_model(buckets / "recurrent", "mamba2", num_hidden_layers=1))
    ways = {"greedy": GREEDY_BATCH, "sampled": SAMPLED, "beams": BEAMS}
    expected = {name: generated(model, **way) for name, way in ways.items()}
    with accelerate(model, "export", cache_folder=buckets, **LIMITS) as fast:
        for name, way in ways.items():
            assert generated(fast, **way) == expected[name], name


def test_second_turn_continues_a_plain_cache_and_gives_it_back(checkpoint: Path, buckets: Path) -> None:
    model, steps = load(checkpoint), (PROMPT, PROMPT[:, :3] + 1, PROMPT[:, :2] + 5)
    with torch.inference_mode():
        cache, expected = None, []
        for ids in steps:
            output = model(input_ids=ids, past_key_values=cache, use_cache=True)
            cache = output.past_key_values
            expected.append(output.logits)
        first = model(input_ids=steps[0], use_cache=True)
        with accelerate(model, "export", cache_folder=buckets, **LIMITS):
            second = model(input_ids=steps[1], past_key_values=first.past_key_values, use_cache=True)
        third = model(input_ids=steps[2], past_key_values=first.past_key_values, use_cache=True)
    for found, wanted in zip((first, second, third), expected, strict=True):
        assert torch.allclose(found.logits, wanted, atol=1e-4)


def test_what_the_buckets_cannot_hold_is_refused(checkpoint: Path, buckets: Path) -> None:
    model = load(checkpoint)
    with (
        accelerate(model, "export", cache_folder=buckets, **LIMITS),
        pytest.raises(RequestError, match="pad on the left"),
    ):
        model(input_ids=BATCH, attention_mask=torch.tensor([[1] * 7, [1] * 6 + [0], [1] * 7]))
    sliding = load(save_tiny_model(buckets / "sliding", "qwen3", use_sliding_window=True, max_window_layers=1))
    with pytest.raises(UnsupportedError, match='StaticSlidingWindowLayer in layer 1: use engine="onnxruntime"'):
        accelerate(sliding, "export", cache_folder=buckets, **LIMITS)


def fast_logits(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """Logits of one token with gradients on: what the buckets return must suit the head in any mode."""
    with torch.inference_mode(False), torch.enable_grad():
        return model(ids[:, :1].clone()).logits


# Layers that hold both kinds of state, and minimax, whose model takes no cache but its own.
NOT_TRACED = ("falcon_h1", "minimax", "zamba", "zamba2")


@pytest.mark.parametrize("family", sample([*NOT_TRACED, *WINDOWED], on_push=("minimax",)))
def test_families_whose_caches_are_not_traced_are_refused(family: str, load_model: LoadModel, buckets: Path) -> None:
    with pytest.raises(UnsupportedError, match='use engine="onnxruntime"'):
        accelerate(load_model(family), "export", cache_folder=buckets, **LIMITS)


# Without sliding windows, which this engine refuses. On push recurrent layers with attention: tracing the gated delta
# rule takes long.
@pytest.mark.parametrize(
    "model_type",
    sample(sorted(set(BASE_CONFIGS) - {*SMALL, *WINDOWED, *NOT_TRACED, "qwen3"}), on_push=()),
)
def test_every_family_decodes(model_type: str, load_model: LoadModel, buckets: Path) -> None:
    model = load_model(model_type)
    ids = PROMPT[:, :5]
    with torch.inference_mode():
        expected = model(ids).logits
        with accelerate(model, "export", cache_folder=buckets, **LIMITS):
            assert torch.isfinite(fast_logits(model, ids)).all()
            cache, found = None, []
            for token in ids.split(1, dim=1):
                output = model(token, use_cache=True, **({} if cache is None else cache))
                name = "cache_params" if "cache_params" in output else "past_key_values"
                cache = {name: output[name]}
                found.append(output.logits)
    assert torch.allclose(torch.cat(found, dim=1), expected, atol=1e-4)
