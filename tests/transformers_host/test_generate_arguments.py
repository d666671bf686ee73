"""Every argument of generate() and every field of GenerationConfig works as without acceleration, or is refused.

``CASES`` and ``REFUSED`` together name all of them, so that one which a new version of transformers adds fails here.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
from transformers import GenerationConfig, PreTrainedTokenizerFast, StoppingCriteriaList
from transformers.generation import (
    LogitsProcessorList,
    MaxLengthCriteria,
    SuppressTokensLogitsProcessor,
    WatermarkingConfig,
)
from transformers.generation.configuration_utils import CompileConfig
from transformers.generation.streamers import BaseStreamer

from hybridge import accelerate
from hybridge.artifact.errors import RequestError
from tests.project.test_wheel import ROOT
from tests.transformers_host.conftest import LoadModel
from tests.transformers_host.generations import PROMPT, generated

REPEATING = torch.tensor([[5, 17, 40, 5, 17, 40, 5, 17]])
SAMPLE: dict[str, Any] = {"do_sample": True}
BEAMS: dict[str, Any] = {"num_beams": 3}


class Streamer(BaseStreamer):
    def put(self, value: torch.Tensor) -> None:
        pass

    def end(self) -> None:
        pass


def sampled(model: Any, input_ids: torch.Tensor, **kwargs: Any) -> torch.Tensor:
    """A decoding loop of a caller's own."""
    for _ in range(3):
        logits = model(input_ids=input_ids, use_cache=False).logits[:, -1]
        input_ids = torch.cat([input_ids, logits.argmax(-1, keepdim=True)], dim=1)
    return input_ids


# What each argument is tried with: its value and, where it needs them, other arguments.
CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    # Of generate()'s signature.
    "inputs": (PROMPT, {}),
    "generation_config": (GenerationConfig(max_new_tokens=3, min_new_tokens=3), {}),
    "logits_processor": (LogitsProcessorList([SuppressTokensLogitsProcessor([3, 7], device="cpu")]), {}),
    "stopping_criteria": (StoppingCriteriaList([MaxLengthCriteria(9)]), {}),
    "prefix_allowed_tokens_fn": (lambda batch, ids: [3, 4, 5], BEAMS),
    "synced_gpus": (False, {}),
    "streamer": (Streamer(), {}),
    "negative_prompt_ids": (torch.tensor([[5, 6]]), {"guidance_scale": 1.5}),
    "negative_prompt_attention_mask": (
        torch.ones(1, 2, dtype=torch.long),
        {"negative_prompt_ids": torch.tensor([[5, 6]]), "guidance_scale": 1.5},
    ),
    "custom_generate": (sampled, {}),
    # Read from its keyword arguments.
    "tokenizer": ("the tokenizer", {"stop_strings": ["a"]}),
    "attention_mask": (torch.ones_like(PROMPT), {}),
    # Fields of GenerationConfig.
    "assistant_confidence_threshold": (0.1, {}),
    "assistant_early_exit": (1, {}),
    "assistant_ensemble_weight": (None, {}),
    "assistant_lookbehind": (10, {}),
    "bad_words_ids": ([[3], [4, 5]], {}),
    "begin_suppress_tokens": ([3], {}),
    "bos_token_id": (1, {}),
    "cache_config": (None, {}),
    "cache_implementation": ("static", {}),
    "compile_config": (CompileConfig(), {"disable_compile": True}),
    "continuous_batching_config": (None, {}),
    "decoder_start_token_id": (1, {}),
    "disable_compile": (True, {}),
    "do_sample": (True, {}),
    "early_stopping": (True, BEAMS),
    "encoder_no_repeat_ngram_size": (2, {}),
    "encoder_repetition_penalty": (1.2, {}),
    "eos_token_id": (17, {}),
    "epsilon_cutoff": (1e-3, SAMPLE),
    "eta_cutoff": (1e-3, SAMPLE),
    "exponential_decay_length_penalty": ((2, 1.5), {"eos_token_id": 9}),
    "forced_bos_token_id": (3, {}),
    "forced_eos_token_id": (3, {}),
    "guidance_scale": (1.5, {}),
    "is_assistant": (False, {}),
    "length_penalty": (0.5, BEAMS),
    "max_cache_len": (None, {}),
    "max_length": (11, {"max_new_tokens": None}),
    "max_matching_ngram_size": (2, {"prompt_lookup_num_tokens": 2, "input_ids": REPEATING}),
    "max_new_tokens": (5, {}),
    "max_time": (60.0, {}),
    "min_length": (9, {}),
    "min_new_tokens": (4, {}),
    "min_p": (0.05, SAMPLE),
    "no_repeat_ngram_size": (2, {}),
    "num_assistant_tokens": (3, {}),
    "num_assistant_tokens_schedule": ("constant", {}),
    "num_beams": (3, {}),
    "num_return_sequences": (2, SAMPLE),
    "output_logits": (True, {}),
    "output_scores": (True, {}),
    "pad_token_id": (0, {}),
    "prefill_chunk_size": (3, {}),
    "prompt_lookup_num_tokens": (2, {"input_ids": REPEATING}),
    "remove_invalid_values": (True, {}),
    "renormalize_logits": (True, SAMPLE),
    "repetition_penalty": (1.3, {}),
    "return_dict_in_generate": (False, {}),
    "sequence_bias": ([[[5], 2.0]], {}),
    "speculation_type": (None, {}),
    "stop_strings": (["a", "bc"], {"tokenizer": "the tokenizer"}),
    "suppress_tokens": ([3, 4], {}),
    "target_lookbehind": (10, {}),
    "temperature": (0.7, SAMPLE),
    "token_healing": (True, {"tokenizer": "the tokenizer"}),
    "top_h": (0.5, SAMPLE),
    "top_k": (5, SAMPLE),
    "top_p": (0.5, SAMPLE),
    "typical_p": (0.5, SAMPLE),
    "use_cache": (False, {}),
    "watermarking_config": (WatermarkingConfig(), {}),
}
# Needs a second model, tried in test_generate.py.
ELSEWHERE = {"assistant_model", "assistant_tokenizer"}
# Docs name these, or transformers itself refuses them.
REFUSED: dict[str, Any] = {
    "output_attentions": True,
    "output_hidden_states": True,
    "dola_layers": "low",
    "use_mtp": True,
}
# Of decoding methods that transformers itself has given up.
GONE = {"constraints", "diversity_penalty", "force_words_ids", "low_memory", "num_beam_groups", "penalty_alpha"}
NO_ARGUMENTS = {"self", "kwargs", "_from_model_config", "transformers_version"}


@pytest.fixture(scope="module")
def pair(load_model: LoadModel, cache_folder: Path) -> Iterator[tuple[Any, Any]]:
    fast = load_model("llama")
    with accelerate(fast, max_cache_len=96, cache_folder=cache_folder, threads=1):
        yield load_model("llama"), fast


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    """A token for each character, so that a text of any tokens has the same tokens again."""
    vocabulary = {"<s>": 0, **{chr(32 + token): token for token in range(1, 95)}}
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<s>"))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Split(tokenizers.Regex("."), "isolated")
    backend.decoder = tokenizers.decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token="<s>",
        eos_token="<s>",
        pad_token="<s>",
        unk_token="<s>",
        padding_side="left",
    )


def test_every_argument_is_named_here(pair: tuple[Any, Any]) -> None:
    signature = set(inspect.signature(type(pair[0]).generate).parameters)
    fields = set(GenerationConfig().to_dict())
    assert signature | fields <= CASES.keys() | REFUSED.keys() | ELSEWHERE | GONE | NO_ARGUMENTS


# The others show that engines change nothing above the text model, which test_generate.py shows, too.
ON_PUSH = {"custom_generate", "guidance_scale", "stop_strings", "tokenizer", "token_healing"}


@pytest.mark.parametrize("name", [n if n in ON_PUSH else pytest.param(n, marks=pytest.mark.slow) for n in CASES])
def test_same_tokens(pair: tuple[Any, Any], tokenizer: PreTrainedTokenizerFast, name: str) -> None:
    value, others = CASES[name]
    arguments = {"max_new_tokens": 4, "do_sample": False, name: value, **others}
    if name in {"custom_generate", "generation_config"}:
        arguments.pop("max_new_tokens")
    if name != "inputs":
        arguments.setdefault("input_ids", PROMPT)
    if "tokenizer" in arguments:
        arguments["tokenizer"] = tokenizer
    plain, fast = pair
    assert generated(fast, **arguments) == generated(plain, **arguments)


@pytest.mark.parametrize("name", REFUSED)
def test_refused_arguments_are_documented(pair: tuple[Any, Any], name: str) -> None:
    page = (ROOT / "docs" / "how-to" / "transformers.md").read_text(encoding="utf-8")
    refused = page[page.index("## What is refused") :]
    assert re.search(rf"`{name}`", refused)
    with pytest.raises((RequestError, ValueError)):
        pair[1].generate(PROMPT, max_new_tokens=3, return_dict_in_generate=True, **{name: REFUSED[name]})
