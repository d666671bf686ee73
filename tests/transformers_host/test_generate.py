"""Features of generate() besides choosing tokens, on a hybrid model and on one of attention layers alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import DynamicCache, StaticCache
from transformers.generation.streamers import BaseStreamer

from hybridge import accelerate
from tests.transformers_host.conftest import LoadModel
from tests.transformers_host.generations import BATCH, BATCH_MASK, PROMPT, exactly, generated

GREEDY: dict[str, Any] = {"do_sample": False, **exactly(10)}
FAMILIES = ["llama", "nemotron_h"]


class Pair:
    """One model twice: as transformers has it, and accelerated."""

    def __init__(self, plain: Any, fast: Any) -> None:
        self.plain, self.fast = plain, fast

    def agree(self, **arguments: Any) -> list[list[int]]:
        found = generated(self.fast, **arguments)
        assert found == generated(self.plain, **arguments)
        return found


@pytest.fixture(scope="module", params=FAMILIES)
def pair(request: pytest.FixtureRequest, load_model: LoadModel, cache_folder: Path) -> Iterator[Pair]:
    fast = load_model(request.param)
    with accelerate(fast, max_cache_len=96, cache_folder=cache_folder, threads=1):
        yield Pair(load_model(request.param), fast)


class Recorder(BaseStreamer):
    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.ended = False

    def put(self, value: torch.Tensor) -> None:
        self.tokens += value.flatten().tolist()

    def end(self) -> None:
        self.ended = True


def test_streamer_gets_every_token(pair: Pair) -> None:
    streamer = Recorder()
    found = generated(pair.fast, input_ids=PROMPT, streamer=streamer, **GREEDY)
    assert streamer.ended and streamer.tokens == found[0] == generated(pair.plain, input_ids=PROMPT, **GREEDY)[0]


def test_returned_dict_holds_scores_and_the_cache(pair: Pair) -> None:
    arguments: dict[str, Any] = {"return_dict_in_generate": True, "output_scores": True, "output_logits": True}
    found, expected = (m.generate(PROMPT, **arguments, **GREEDY) for m in (pair.fast, pair.plain))
    assert torch.equal(found.sequences, expected.sequences)
    assert len(found.scores) == len(found.logits) == 10
    for mine, theirs in zip(found.logits, expected.logits, strict=True):
        assert torch.allclose(mine, theirs, atol=1e-4)
    assert found.past_key_values.get_seq_length() == expected.past_key_values.get_seq_length() == 16


def test_states_in_the_cache_are_those_of_transformers(pair: Pair) -> None:
    positions = (BATCH_MASK.cumsum(1) - 1).clamp(min=0)
    caches = [
        m(input_ids=BATCH, attention_mask=BATCH_MASK, position_ids=positions, use_cache=True).past_key_values
        for m in (pair.fast, pair.plain)
    ]
    real = BATCH_MASK.bool()
    for mine, theirs in zip(caches[0].layers, caches[1].layers, strict=True):
        if getattr(theirs, "keys", None) is not None:
            for name in ("keys", "values"):
                a, b = (getattr(layer, name).transpose(1, 2)[real] for layer in (mine, theirs))
                assert torch.allclose(a, b, atol=1e-5)
        elif getattr(theirs, "is_initialized", False) and hasattr(theirs, "conv_states"):
            assert torch.allclose(mine.conv_states[0], theirs.conv_states[0], atol=1e-5)
            assert torch.allclose(mine.recurrent_states[0], theirs.recurrent_states[0], atol=1e-5)


@pytest.mark.parametrize(
    "arguments",
    [
        {"num_return_sequences": 3, "do_sample": True, **exactly(8)},
        {"num_beams": 4, "num_return_sequences": 2, "do_sample": False, **exactly(8)},
        {"num_beams": 2, "do_sample": True, **exactly(8)},
        {"cache_implementation": "static", **GREEDY},
        {"prefill_chunk_size": 3, **GREEDY},
        {"use_cache": False, "do_sample": False, **exactly(3)},
        {"repetition_penalty": 1.4, "no_repeat_ngram_size": 2, **GREEDY},
    ],
    ids=lambda arguments: "-".join(list(arguments)[:2]),
)
def test_same_tokens(pair: Pair, arguments: dict[str, Any]) -> None:
    pair.agree(input_ids=PROMPT, **arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        {"num_beams": 2, "do_sample": False, **exactly(8)},
        {"num_return_sequences": 2, "do_sample": True, **exactly(8)},
        {"cache_implementation": "static", **GREEDY},
    ],
    ids=lambda arguments: next(iter(arguments)),
)
def test_same_tokens_for_padded_batches(pair: Pair, arguments: dict[str, Any]) -> None:
    pair.agree(input_ids=BATCH, attention_mask=BATCH_MASK, **arguments)


@pytest.mark.parametrize("lookup", [2, 5])
def test_assisted_generation_takes_rejected_tokens_back(pair: Pair, lookup: int) -> None:
    repeating = torch.tensor([[5, 17, 40, 5, 17, 40, 5, 17]])
    expected = generated(pair.plain, input_ids=repeating, do_sample=False, **exactly(20))
    assert (
        generated(pair.fast, input_ids=repeating, prompt_lookup_num_tokens=lookup, do_sample=False, **exactly(20))
        == expected
    )


def test_accelerated_assistant_proposes(pair: Pair) -> None:
    # transformers takes a padding token in an assistant's input for padding, even where it was generated.
    way = {"input_ids": PROMPT, "suppress_tokens": [0], **GREEDY}
    assert generated(pair.fast, assistant_model=pair.fast, **way) == generated(pair.plain, **way)


@pytest.mark.parametrize("whole", [True, False], ids=["whole conversation", "new tokens"])
@pytest.mark.parametrize("kind", ["dynamic", "static"])
def test_second_turn_continues_the_caller_s_cache(pair: Pair, kind: str, whole: bool) -> None:
    answers = []
    for model in (pair.fast, pair.plain):
        config = model.config
        cache = DynamicCache(config=config) if kind == "dynamic" else StaticCache(config=config, max_cache_len=64)
        first = model.generate(PROMPT, past_key_values=cache, **GREEDY)
        conversation = torch.cat([first, torch.tensor([[77, 30, 12]])], dim=1)
        inputs = conversation if whole else conversation[:, cache.get_seq_length() :]
        mask = torch.ones_like(conversation)
        second = model.generate(inputs, attention_mask=mask, past_key_values=cache, **GREEDY)
        answers.append((first.tolist(), second.tolist(), cache.get_seq_length()))
    assert answers[0] == answers[1]


def test_logits_of_every_token(pair: Pair) -> None:
    with torch.inference_mode():
        found, expected = (m(input_ids=BATCH, attention_mask=BATCH_MASK) for m in (pair.fast, pair.plain))
    real = BATCH_MASK.bool()
    assert torch.allclose(found.logits[real], expected.logits[real], atol=1e-4)
    labels = PROMPT.clone()
    assert torch.allclose(pair.fast(PROMPT, labels=labels).loss, pair.plain(PROMPT, labels=labels).loss, atol=1e-5)
