"""What transformers makes of a config.json: a random model that it builds and runs on the CPU, or nothing."""

from __future__ import annotations

import contextlib
import io
import json
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hybridge.artifact.errors import HybridgeError
from hybridge.exporter.families.hf_config import HfConfig
from hybridge.exporter.families.registry import FAMILIES, decoder_config
from tests.support.eager_decoder import EagerDecoder
from tests.support.tiny_models import randomise

TOKENS = np.array([5, 3, 0, 7, 1, 4, 2, 6, 5, 0, 3], np.int64)
# Relative L2 norm of logits. Odd sizes (a head of one dimension, a hidden size of three) lose more than usual ones in
# float32, where the same sums are taken in another order.
TOLERANCE = 1e-4
# Models beyond are not built: a default size instead of a tiny one says nothing that a tiny one does not.
MOST_PARAMETERS = 3_000_000

AGREES, TOO_LARGE = "agrees", "too large to be built"


class RecordedFields(HfConfig):
    """A config that records which fields its family reads, and which of them are spellings of one field."""

    def __init__(self, data: Mapping[str, Any]) -> None:
        super().__init__(data)
        self.requested: set[str] = set()
        self.spellings: set[tuple[str, ...]] = set()

    def __contains__(self, key: str) -> bool:
        self.requested.add(key)
        return super().__contains__(key)

    def raw(self, key: str, *default: Any) -> Any:
        self.requested.add(key)
        return super().raw(key, *default)

    def name_of(self, *names: str) -> str:
        self.spellings |= {names} if len(names) > 1 else set()
        return super().name_of(*names)


def recorded(config: Mapping[str, Any]) -> RecordedFields:
    """``config`` after the parser of its family has read it."""
    fields = RecordedFields(config)
    FAMILIES[config["model_type"]](fields)
    return fields


@contextlib.contextmanager
def quiet_transformers() -> Iterator[None]:
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.disable(before)


def transformers_config(config: Mapping[str, Any], folder: Path) -> Any | None:
    """The config object that transformers reads from ``config`` as a file of ``folder``; None where it refuses it."""
    from transformers import AutoConfig

    (folder / "config.json").write_text(json.dumps(config))
    with quiet_transformers():
        try:
            return AutoConfig.from_pretrained(folder)
        except Exception:
            return None


def complete_config(config: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """``config`` as transformers saves it, every field spelled out."""
    found = transformers_config(config, folder)
    assert found is not None
    return {**json.loads(found.to_json_string(use_diff=False)), "model_type": config["model_type"]}


@dataclass(frozen=True)
class Judge:
    """Compares our reading of configs with transformers'; ``folder`` is for its files, ``base`` a sound config."""

    folder: Path
    base: dict[str, Any]

    def verdict(self, config: dict[str, Any]) -> str:
        """AGREES, TOO_LARGE, or what is wrong, for a ``config`` that we accept."""
        theirs = transformers_config(config, self.folder)
        if theirs is None:
            return "accepted here, but transformers cannot load it"
        ours = decoder_config(config)
        if theirs.to_dict() == self._base_fields and ours == decoder_config(self.base):
            return AGREES
        model = _random_model(theirs)
        if isinstance(model, str):
            return model
        expected = _logits(model, theirs.vocab_size)
        if isinstance(expected, str):
            return expected
        if ours == decoder_config(self.base):
            return AGREES if np.array_equal(expected, self._base_logits) else "read as the base, but computes otherwise"
        return self._compared(model, config, expected)

    @cached_property
    def _base_fields(self) -> dict[str, Any]:
        return transformers_config(self.base, self.folder).to_dict()

    @cached_property
    def _base_logits(self) -> np.ndarray:
        return _logits(_random_model(transformers_config(self.base, self.folder)), self.base["vocab_size"])

    def _compared(self, model: Any, config: dict[str, Any], expected: np.ndarray) -> str:
        with quiet_transformers():
            model.save_pretrained(self.folder)
        (self.folder / "config.json").write_text(json.dumps(config))
        (self.folder / "generation_config.json").unlink(missing_ok=True)
        try:
            ours = EagerDecoder(self.folder)
            tokens = TOKENS % model.config.vocab_size
            found = ours.step([tokens], [0], ours.zero_states(1, len(tokens))).logits[0].numpy()
        except HybridgeError as error:
            return f"accepted, but its tensors are not: {error}"
        difference = float(np.linalg.norm(found - expected) / (np.linalg.norm(expected) or 1.0))
        return AGREES if difference < TOLERANCE else f"logits differ by {difference:.1e}"


def _random_model(config: Any) -> Any:
    """A model with weights from one seed, or a sentence that says why it cannot be built."""
    from transformers import AutoModelForCausalLM

    with quiet_transformers():
        try:
            with torch.device("meta"):
                shapes = AutoModelForCausalLM.from_config(config)
            if sum(p.numel() for p in shapes.parameters()) > MOST_PARAMETERS:
                return TOO_LARGE
            torch.manual_seed(0)
            model = AutoModelForCausalLM.from_config(config).float().eval()
        except Exception as error:
            return f"accepted here, but transformers cannot build it: {error}"
    randomise(model)
    if hasattr(model, "set_experts_implementation"):
        model.set_experts_implementation("eager")
    limit = getattr(config, "time_step_limit", None)
    for module in model.modules():
        if limit is not None and hasattr(module, "time_step_limit"):  # where transformers clamps at time_step_min
            module.time_step_limit = tuple(limit)
    return model


def _logits(model: Any, vocab_size: int) -> Any:
    """[tokens, vocab], or a sentence that says why they cannot be computed."""
    with quiet_transformers(), torch.no_grad():
        try:
            tokens = torch.from_numpy(TOKENS % vocab_size)[None]
            logits = model(tokens, use_cache=False, return_dict=True).logits[0].numpy()
        except Exception as error:
            return f"accepted here, but transformers cannot run it: {error}"
    return logits if np.isfinite(logits).all() else "accepted here, but transformers gives no finite logits"
