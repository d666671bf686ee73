"""From the fields of a request to sampling parameters."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hybridge.artifact.errors import RequestError
from hybridge.runtime.sampling import SamplingParams
from hybridge.serve.schemas.base import SamplingFields

# Fields that are parameters of the same name and meaning.
_SAME = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "stop_token_ids",
    "ignore_eos",
    "n",
    "min_tokens",
    "bad_words",
    "allowed_token_ids",
    "skip_special_tokens",
    "include_stop_str_in_output",
)
_SEEDS = 1 << 64
_DEFAULT = SamplingParams()


def sampling_params(fields: SamplingFields, recommended: SamplingParams, **more: Any) -> SamplingParams:
    """The parameters of a request; those left out are ``recommended``. ``more``: other parameters.

    RequestError names a value that is out of range.
    """
    # The filters of a greedy recommendation are not meant for requests that sample.
    base = _DEFAULT if recommended.greedy else recommended
    values = {name: value for name in _SAME if (value := getattr(fields, name)) is not None}
    if fields.stop is not None:
        values["stop"] = [text for text in ([fields.stop] if isinstance(fields.stop, str) else fields.stop) if text]
    if fields.seed is not None:
        values["seed"] = fields.seed % _SEEDS  # the API has negative seeds
    if fields.logit_bias:
        values["logit_bias"] = _biases(fields.logit_bias)
    return replace(base, **values, **more)


def _biases(given: dict[str, float]) -> dict[int, float]:
    if not all(key.isascii() and key.isdecimal() and len(key) < 12 for key in given):
        raise RequestError("logit_bias: expected token ids as keys, found other text: see /tokenize")
    return {int(key): value for key, value in given.items()}
