"""Taking the engine away again leaves nothing behind, and gives caches in use plain layers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import DynamicCache, StaticCache

from hybridge import accelerate
from hybridge.artifact.errors import RequestError, SettingError, UnsupportedError
from tests.transformers_host.conftest import LoadModel
from tests.transformers_host.generations import PROMPT, exactly, generated

NEXT = torch.tensor([[77, 30, 12]])


def test_model_is_as_it_was(load_model: LoadModel, cache_folder: Path) -> None:
    model = load_model("llama")
    text_model, before = model.model, dict(vars(model))
    expected = generated(model, input_ids=PROMPT, do_sample=False, **exactly(5))
    names = list(model.state_dict())
    acceleration = accelerate(model, max_cache_len=96, cache_folder=cache_folder, threads=1)
    assert model.model is not text_model and list(model.state_dict()) == names
    assert model.get_input_embeddings() is text_model.embed_tokens
    acceleration.undo()
    acceleration.undo()
    assert model.model is text_model and dict(vars(model)).keys() == before.keys()
    assert generated(model, input_ids=PROMPT, do_sample=False, **exactly(5)) == expected


@pytest.mark.parametrize("model_type", ["llama", "nemotron_h", pytest.param("kimi_linear", marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", ["dynamic", "static"])
def test_caches_cross_over_in_both_directions(
    model_type: str, kind: str, load_model: LoadModel, cache_folder: Path
) -> None:
    model = load_model(model_type)

    def empty() -> DynamicCache | StaticCache:
        config = model.config
        return DynamicCache(config=config) if kind == "dynamic" else StaticCache(config=config, max_cache_len=32)

    with torch.inference_mode():
        steps = (PROMPT, NEXT, NEXT + 5)
        cache = empty()
        expected = [model(input_ids=ids, past_key_values=cache, use_cache=True).logits for ids in steps]
        cache = empty()
        found = [model(input_ids=steps[0], past_key_values=cache, use_cache=True).logits]
        with accelerate(model, max_cache_len=96, cache_folder=cache_folder, threads=1):
            found.append(model(input_ids=steps[1], past_key_values=cache, use_cache=True).logits)
        found.append(model(input_ids=steps[2], past_key_values=cache, use_cache=True).logits)
    for mine, theirs in zip(found, expected, strict=True):
        assert torch.allclose(mine, theirs, atol=1e-4)


def test_what_cannot_be_accelerated_is_refused(load_model: LoadModel, cache_folder: Path) -> None:
    model = load_model("llama")
    with pytest.raises(UnsupportedError, match="engine: expected one of onnxruntime, export, torch, tensorrt, found"):
        accelerate(model, "tflite", cache_folder=cache_folder)
    with pytest.raises(RequestError, match=r"expected a causal language model of transformers .* found LlamaModel"):
        accelerate(model.model, cache_folder=cache_folder)
    with pytest.raises(SettingError, match="max_cache_len: expected an integer of at least 1, found 0"):
        accelerate(model, max_cache_len=0, cache_folder=cache_folder)
    with (
        accelerate(model, max_cache_len=96, cache_folder=cache_folder, threads=1),
        pytest.raises(RequestError, match="found an accelerated"),
    ):
        accelerate(model, cache_folder=cache_folder)
