"""Tiny models of transformers, and one cache folder of artifacts for the whole session."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from hybridge.verification.transformers_model import group_gated_norms
from tests.support.tiny_models import save_tiny_model

LoadModel = Callable[..., Any]


@pytest.fixture(scope="session")
def cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="session")
def load_model(tmp_path_factory: pytest.TempPathFactory) -> LoadModel:
    """A fresh model of a family with overrides of its tiny config, always with the same weights."""
    folder = tmp_path_factory.mktemp("checkpoints")

    def load(model_type: str, **overrides: Any) -> Any:
        path = folder / "-".join((model_type, *map(str, overrides.values())))
        if not path.exists():
            save_tiny_model(path, model_type, **overrides)
        model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
        group_gated_norms(model)  # transformers before 5.21 normalises over all groups at once
        return model

    return load
