"""Every supported family gives the same tokens before and after, whatever generate() does."""

from __future__ import annotations

from pathlib import Path

import pytest

from hybridge import accelerate
from tests.support.effort import sample
from tests.support.tiny_models import BASE_CONFIGS
from tests.transformers_host.conftest import LoadModel
from tests.transformers_host.generations import BATCH, BATCH_MASK, BEAMS, GREEDY_BATCH, SAMPLED, exactly, generated

PADDED = "a padded batch, greedy"
# What transformers 5.23 computes wrongly. minimax: padded rows get other tokens than alone, states do not follow beams.
# recurrent_gemma: its convolution and its recurrence read the padding, states do not follow beams.
WRONG = {"minimax": {PADDED, "beams"}, "recurrent_gemma": {PADDED, "beams"}}


# On push each kind of cache that transformers has: of attention, of Mamba2, of both in two ways.
@pytest.mark.parametrize(
    "model_type", sample(sorted(BASE_CONFIGS), on_push=("llama", "mamba2", "nemotron_h", "qwen3_next"))
)
def test_same_tokens(model_type: str, load_model: LoadModel, cache_folder: Path) -> None:
    model = load_model(model_type)
    ways = {PADDED: GREEDY_BATCH, "sampled": SAMPLED, "beams": BEAMS}
    ways = {name: way for name, way in ways.items() if name not in WRONG.get(model_type, ())}
    expected = {name: generated(model, **way) for name, way in ways.items()}
    with accelerate(model, "onnxruntime", max_cache_len=96, cache_folder=cache_folder, threads=1) as fast:
        for name, way in ways.items():
            assert generated(fast, **way) == expected[name], name


@pytest.mark.slow
@pytest.mark.parametrize("model_type", WRONG)
def test_beams_get_the_tokens_of_a_generation_without_states(
    model_type: str, load_model: LoadModel, cache_folder: Path
) -> None:
    model = load_model(model_type)
    expected = generated(model, **BEAMS, use_cache=False)
    with accelerate(model, "onnxruntime", max_cache_len=96, cache_folder=cache_folder, threads=1) as fast:
        assert generated(fast, **BEAMS) == expected


@pytest.mark.slow
@pytest.mark.parametrize("model_type", WRONG)
def test_padded_rows_get_the_tokens_that_each_gets_alone(
    model_type: str, load_model: LoadModel, cache_folder: Path
) -> None:
    model = load_model(model_type)
    rows = [(ids[mask.bool()], int((1 - mask).sum())) for ids, mask in zip(BATCH, BATCH_MASK, strict=True)]
    expected = [generated(model, input_ids=ids[None], do_sample=False, **exactly(64))[0] for ids, _ in rows]
    with accelerate(model, "onnxruntime", max_cache_len=96, cache_folder=cache_folder, threads=1) as fast:
        found = generated(fast, **GREEDY_BATCH)
    assert [tokens[padding:] for tokens, (_, padding) in zip(found, rows, strict=True)] == expected


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_same_tokens_by_the_torch_engine(device: str, load_model: LoadModel, cache_folder: Path) -> None:
    model = load_model("nemotron_h").to(device)
    batch = {name: value.to(device) for name, value in (("input_ids", BATCH), ("attention_mask", BATCH_MASK))}
    ways = {"greedy": {**batch, "do_sample": False, **exactly(12)}, "beams": {**batch, "num_beams": 2, **exactly(8)}}
    expected = {name: generated(model, **way) for name, way in ways.items()}
    with accelerate(model, "torch", max_cache_len=96, cache_folder=cache_folder) as fast:
        for name, way in ways.items():
            assert generated(fast, **way) == expected[name], name
