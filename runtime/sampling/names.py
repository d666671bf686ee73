"""Names of sampling parameters in other libraries: accepted where they mean the same, else hinted at."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from hybridge.artifact.errors import RequestError

# vLLM's names for our parameters.
SAME = {"max_tokens": "max_new_tokens"}
# Parameters of vLLM, OpenAI and transformers that we lack, with what to use instead.
INSTEAD = {
    "bad_words_ids": "bad_words, or logit_bias for single tokens",
    "best_of": "n",
    "detokenize": "token_ids of the answer",
    "do_sample": "temperature: 0 is greedy",
    "early_stopping": "beam_width",
    "eos_token_id": "stop_token_ids",
    "forced_eos_token_id": "logits_processors",
    "guided_decoding": "allowed_tokens",
    "max_completion_tokens": "max_new_tokens",
    "max_length": "max_new_tokens (the prompt does not count)",
    "min_length": "min_tokens (the prompt does not count)",
    "min_new_tokens": "min_tokens",
    "num_beams": "beam_width",
    "num_return_sequences": "n",
    "sequence_bias": "logit_bias for single tokens",
    "stop_strings": "stop",
    "structured_outputs": "allowed_tokens",
    "suppress_tokens": "logit_bias, or allowed_token_ids",
    "top_logprobs": "logprobs",
    "truncate_prompt_tokens": "a shorter prompt",
    "use_beam_search": "beam_width",
}


def own_names(given: dict[str, Any], known: Collection[str]) -> dict[str, Any]:
    """``given`` under this library's names; RequestError for a name that is not ``known``, with a hint, or for one
    parameter under two names."""
    found = dict(given)
    for other, own in SAME.items():
        value = found.pop(other, None)
        if value is not None and found.get(own) not in (None, value):
            raise RequestError(f"{other}: expected it alone, found {own} too, which means the same: leave one out")
        if value is not None:
            found[own] = value
    for name in found:
        if name not in known:
            raise RequestError(
                f"{name}: expected a parameter of SamplingParams, found none of this name: {hint(name, known)}"
            )
    return found


def hint(name: str, known: Iterable[str]) -> str:
    """A suggestion of what to use instead of an unknown ``name``."""
    if name in INSTEAD:
        return f"use {INSTEAD[name]}"
    from difflib import get_close_matches  # at a mistake only: it imports much

    close = get_close_matches(name, list(known), 1)
    return f"did you mean {close[0]}?" if close else "leave it out"
