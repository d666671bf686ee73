"""What an accelerated model cannot do is refused before anything is computed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import DynamicCache

from hybridge import accelerate
from hybridge.artifact.errors import RequestError
from hybridge.transformers_host.engine_backend import EngineRows
from tests.transformers_host.conftest import LoadModel
from tests.transformers_host.generations import BATCH, BATCH_MASK, PROMPT, exactly


@pytest.fixture(scope="module")
def model(load_model: LoadModel, cache_folder: Path) -> Iterator[Any]:
    with accelerate(
        load_model("nemotron_h"), max_cache_len=32, max_batch_size=3, cache_folder=cache_folder, threads=1
    ) as fast:
        yield fast


@pytest.fixture(autouse=True)
def nothing_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise AssertionError("a refused call reached the engine")

    monkeypatch.setattr(EngineRows, "_feed", fail)
    monkeypatch.setattr(EngineRows, "_decode", fail)


LONG = torch.arange(3, 36)[None]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"input_ids": LONG, **exactly(1)}, "expected at most 32 tokens in the cache, found 33"),
        ({"input_ids": PROMPT, **exactly(27)}, "expected at most 32 tokens in the cache, found 33"),
        ({"input_ids": PROMPT, "num_beams": 4}, "expected at most 3 rows .* found 4"),
        ({"input_ids": BATCH, "num_return_sequences": 2, "do_sample": True}, "expected at most 3 rows .* found 6"),
        (
            {"input_ids": PROMPT, "output_hidden_states": True, "return_dict_in_generate": True},
            "output_hidden_states: expected False, found True",
        ),
        (
            {"input_ids": PROMPT, "output_attentions": True, "return_dict_in_generate": True},
            "output_attentions: expected False, found True",
        ),
        ({"input_ids": PROMPT, "position_ids": torch.arange(7)[None] + 1}, "position_ids: expected the number"),
    ],
)
def test_generate_refuses(model: Any, arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(RequestError, match=sentence):
        model.generate(**{"max_new_tokens": 4, "min_new_tokens": 1, **arguments})


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"input_ids": LONG}, "expected at most 32 tokens in the cache, found 33"),
        ({"input_ids": PROMPT.repeat(4, 1)}, "expected at most 3 rows .* found 4"),
        (
            {"input_ids": PROMPT, "attention_mask": torch.ones(1, 9)},
            r"attention_mask: expected \[1, 7\], found \[1, 9\]",
        ),
        (
            {"input_ids": PROMPT, "attention_mask": torch.ones(1, 1, 7, 7, dtype=torch.bool)},
            "expected a causal mask with padding, found another pattern",
        ),
        ({"input_ids": BATCH, "attention_mask": BATCH_MASK, "position_ids": torch.arange(7)[None]}, "position_ids"),
        ({"inputs_embeds": torch.zeros(1, 3, 48)}, "expected input_ids alone, found inputs_embeds"),
        ({"input_ids": PROMPT, "token_type_ids": PROMPT}, "expected no argument token_type_ids, found one"),
    ],
)
def test_forward_refuses(model: Any, arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(RequestError, match=sentence):
        model(**arguments)


def test_training_is_refused(model: Any) -> None:
    model.train()
    try:
        with pytest.raises(RequestError, match=r"cannot be trained: call model.eval\(\)"):
            model(PROMPT)
    finally:
        model.eval()


def test_refused_call_leaves_the_caller_s_cache_alone(model: Any) -> None:
    cache = DynamicCache(config=model.config)
    layers = list(cache.layers)
    with pytest.raises(RequestError):
        model(LONG, past_key_values=cache)
    assert cache.layers == layers
