"""Counts of tokens as the API shows them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hybridge.runtime.generation import Generation


def usage(answers: Sequence[Sequence[Generation]]) -> dict[str, Any]:
    """The usage of all answers to each prompt; a prompt counts once."""
    prompt = sum(len(each[0].prompt_token_ids) for each in answers)
    cached = sum(each[0].cached_tokens for each in answers)
    return counts(prompt, cached, sum(len(answer.token_ids) for each in answers for answer in each))


def counts(prompt: int, cached: int, completion: int) -> dict[str, Any]:
    """The usage of these numbers of tokens."""
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }
