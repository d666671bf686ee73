"""What a call for one prompt or for several of them means."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from artifact.errors import RequestError
from runtime.sampling import SamplingParams

Sampling = SamplingParams | Sequence[SamplingParams] | None
Messages = Sequence[Mapping[str, Any]]


def conversations_of(messages: object) -> tuple[bool, list[Any]]:
    """Whether ``messages`` are one conversation, and the list of conversations; RequestError when they are none."""
    if isinstance(messages, str):
        return True, [[{"role": "user", "content": messages}]]
    if not isinstance(messages, (list, tuple)):
        raise RequestError(
            "messages: expected text, a list of objects with a role and a content, or a list of such lists, found "
            f"{type(messages).__name__}"
        )
    single = not all(isinstance(item, (list, tuple)) for item in messages) or not messages
    return single, [messages] if single else list(messages)


def params_of_prompts(sampling: Sampling, max_new_tokens: int | None, count: int) -> list[SamplingParams]:
    """Those of each of ``count`` prompts; RequestError when ``sampling`` is of another number of them."""
    given = [sampling or SamplingParams()] * count if isinstance(sampling, SamplingParams | None) else list(sampling)
    if len(given) != count or not all(isinstance(params, SamplingParams) for params in given):
        raise RequestError(f"sampling: expected SamplingParams, or a list of {count} of them, found {sampling!r}")
    return given if max_new_tokens is None else [replace(params, max_new_tokens=max_new_tokens) for params in given]
