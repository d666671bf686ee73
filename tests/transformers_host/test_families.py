"""Every supported family gives the same tokens before and after, whatever generate() does."""

from __future__ import annotations

from pathlib import Path

import pytest

from hybridge import accelerate
from tests.support.effort import sample
from tests.support.tiny_models import BASE_CONFIGS
from tests.transformers_host.conftest import LoadModel
from tests.transformers_host.generations import BATCH, BATCH_MASK, BEAMS, GREEDY_BATCH, SAMPLED, exactly, generated

# What transformers 5.23 computes wrongly: padded rows get other tokens than alone, states do not follow beams.
WRONG = {"minimax": {"a padded batch, greedy", "beams"}}


# On push each kind of cache that transformers has: of attention, of Mamba2, of both in two ways.
@pytest.mark.parametrize(
    "model_type", sample(sorted(BASE_CONFIGS), on_push=("llama", "mamba2", "nemotron_h", "qwen3_next"))
)
def test_same_tokens(model_type: str, load_model: LoadModel, cache_folder: Path) -> None:
    model = load_model(model_type)
    ways = {"a padded batch, greedy": GREEDY_BATCH, "sampled": SAMPLED, "beams": BEAMS}
    ways = {name: way for name, way in ways.items() if name not in WRONG.get(model_type, ())}
    expected = {name: generated(model, **way) for name, way in ways.items()}
    with accelerate(model, "onnxruntime", max_cache_len=96, cache_folder=cache_folder, threads=1) as fast:
        for name, way in ways.items():
            assert generated(fast, **way) == expected[name], name


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_same_tokens_by_the_torch_engine(device: str, load_model: LoadModel, cache_folder: Path) -> None:
    model = load_model("nemotron_h").to(device)
    batch = {name: value.to(device) for name, value in (("input_ids", BATCH), ("attention_mask", BATCH_MASK))}
    ways = {"greedy": {**batch, "do_sample": False, **exactly(12)}, "beams": {**batch, "num_beams": 2, **exactly(8)}}
    expected = {name: generated(model, **way) for name, way in ways.items()}
    with accelerate(model, "torch", max_cache_len=96, cache_folder=cache_folder) as fast:
        for name, way in ways.items():
            assert generated(fast, **way) == expected[name], name
