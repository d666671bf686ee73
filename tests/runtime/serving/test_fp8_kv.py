"""Serving an artifact whose keys and values are e4m3: cached prompts, and sessions of pools whose token axes differ."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import pytest

from hybridge.runtime.engines.factory import EngineOptions
from hybridge.runtime.engines.paged_factory import create_paged_engine
from hybridge.runtime.llm import LLM
from hybridge.runtime.prefix_cache.settings import PrefixCacheSettings
from hybridge.runtime.serving.settings import ServingSettings
from tests.support.artifacts import ArtifactCache
from tests.support.effort import sample

PROMPT = np.random.default_rng(3).integers(3, 97, 41).tolist()


def opened(folder: Path, engine: str, block_size: int) -> LLM:
    paged = create_paged_engine(folder, engine, EngineOptions(threads=1))
    memory = 24 * paged.block_bytes(block_size) * 16 // block_size + 8 * paged.slot_bytes
    cache = PrefixCacheSettings(cached_states=5)
    return LLM(folder, engine=paged, serving=ServingSettings(block_size, memory_bytes=memory, prefix_cache=cache))


@pytest.mark.parametrize("engines", [("onnxruntime", "torch"), ("torch", "onnxruntime")], ids=str)
def test_a_session_continues_with_another_block_size(
    engines: tuple[str, str], artifacts: ArtifactCache, tmp_path: Path
) -> None:
    options = {"layout": "paged", "kv_dtype": "fp8_e4m3", "max_batch_size": 3, "max_seq_len": 96}
    folder = artifacts.get("nemotron_h", "float32", **options).folder
    with opened(folder, engines[0], 16) as first:
        answer = first.generate(PROMPT, max_new_tokens=5)
        history = [*PROMPT, *answer.token_ids]
        first.save_session(tmp_path / "chat.session", answer)
        whole = first.generate([*history, 9, 10], max_new_tokens=5)
    with opened(folder, engines[1], 5) as second:
        assert second.load_session(tmp_path / "chat.session").length == len(history) - 1
        again = second.generate([*history, 9, 10], max_new_tokens=5)
    assert again.cached_tokens == len(history) - 1 and again.token_ids == whole.token_ids


@pytest.mark.parametrize(
    ("engine", "family"),
    sample(
        product(("onnxruntime", "torch"), ("nemotron_h", "qwen3")),
        on_push=(("onnxruntime", "nemotron_h"),),
    ),
)
def test_tokens_are_those_without_a_cache(engine: str, family: str, artifacts: ArtifactCache) -> None:
    """Prompts nest, part inside blocks and come again; keys and values are rounded once, when they are computed."""
    options = {"layout": "paged", "kv_dtype": "fp8_e4m3", "max_batch_size": 3, "max_seq_len": 96}
    folder = artifacts.get(family, "float32", **options).folder
    rng, found, hits = np.random.default_rng(5), {}, 0
    prompts = [[*PROMPT[:length], *rng.integers(3, 97, 4).tolist()] for length in (41, 30, 41, 17, 33, 16, 41)]
    for kind in ("off", "radix"):
        with LLM(folder, engine, serving=ServingSettings(prefix_cache=kind), threads=1) as llm:
            answers = [llm.generate(prompt, max_new_tokens=6) for prompt in [*prompts, *prompts]]
            found[kind] = [answer.token_ids for answer in answers]
            hits = sum(answer.cached_tokens for answer in answers)
    assert found["radix"] == found["off"] and hits > 250
