"""Sampling defaults of a checkpoint's generation_config.json."""

from __future__ import annotations

from pathlib import Path

from hybridge.artifact.errors import ArtifactError, RequestError
from hybridge.artifact.json_fields import Fields, load_json_object
from hybridge.artifact.untrusted_file import has_file
from hybridge.runtime.sampling import SamplingParams

GENERATION_CONFIG_FILE = "generation_config.json"


def read_generation_config(folder: Path) -> Fields:
    """The fields of generation_config.json; without the file, none."""
    present = has_file(folder, GENERATION_CONFIG_FILE)
    return Fields(load_json_object(folder / GENERATION_CONFIG_FILE) if present else {}, GENERATION_CONFIG_FILE)


def eos_token_ids(config: Fields) -> tuple[int, ...]:
    """The EOS tokens, which may be written as one id or a list; ArtifactError for anything else."""
    value = config.raw("eos_token_id", None)
    ids = [] if value is None else value if isinstance(value, list) else [value]
    if not all(isinstance(token, int) and not isinstance(token, bool) and token >= 0 for token in ids):
        raise config.fail("eos_token_id", "a token id or a list of them")
    return tuple(ids)


def recommended_sampling(config: Fields) -> SamplingParams:
    """The sampling that the checkpoint's authors recommend; greedy when they ask for no sampling.

    ArtifactError for values of a wrong type or range.
    """
    sample = config.boolean("do_sample", False)
    top_k = config.integer("top_k", None)
    try:
        return SamplingParams(
            temperature=_number(config, "temperature", 1.0) if sample else 0.0,
            # transformers' generate() would take 50 where the field is missing; serving engines filter nothing then.
            top_k=0 if top_k is None else top_k,
            top_p=_number(config, "top_p", 1.0),
            min_p=_number(config, "min_p", 0.0),
            repetition_penalty=_number(config, "repetition_penalty", 1.0),
        )
    except RequestError as error:
        raise ArtifactError(f"{GENERATION_CONFIG_FILE}: {error}") from error


def _number(config: Fields, key: str, default: float) -> float:
    value = config.number(key, None)
    return default if value is None else value
