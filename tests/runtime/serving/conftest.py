"""A small hybrid model to serve, and what its states and KV should be."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from hybridge.runtime.llm import LLM
from tests.runtime.prefix_cache.oracle import Oracle
from tests.support.artifacts import ArtifactCache

MAX_SEQ, ROWS = 96, 3
Opened = Callable[..., LLM]


@pytest.fixture(scope="module")
def folder(artifacts: ArtifactCache) -> Path:
    return artifacts.get("nemotron_h", "float32", layout="paged", max_batch_size=ROWS, max_seq_len=MAX_SEQ).folder


@pytest.fixture(scope="module")
def oracle(folder: Path) -> Oracle:
    return Oracle(folder, MAX_SEQ)
