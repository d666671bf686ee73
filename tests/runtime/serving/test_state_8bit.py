"""Serving artifacts with recurrent states of 8 bits: sessions, and caches that pack states."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hybridge.artifact.dtypes import DType
from hybridge.runtime.llm import LLM
from hybridge.runtime.prefix_cache.session_file import read_session
from hybridge.runtime.prefix_cache.settings import PrefixCacheSettings
from hybridge.runtime.serving.settings import ServingSettings
from tests.support.artifacts import ArtifactCache

PROMPT = np.random.default_rng(3).integers(3, 97, 41).tolist()
ENGINES = ("onnxruntime", "torch")


def folder_of(artifacts: ArtifactCache, kind: DType = DType.INT8, layout: str = "paged") -> Path:
    options = {"layout": layout, "state_dtype": kind, "max_batch_size": 3, "max_seq_len": 96}
    return artifacts.get("nemotron_h", "float32", {"hybrid_override_pattern": "M*"}, **options).folder


@pytest.mark.parametrize(
    ("engine", "layout"),
    [
        ("onnxruntime", "paged"),
        pytest.param("torch", "paged", marks=pytest.mark.slow),
        pytest.param("onnxruntime", "dense", marks=pytest.mark.slow),
    ],
)
def test_a_session_holds_the_states_as_they_are(
    engine: str, layout: str, artifacts: ArtifactCache, tmp_path: Path
) -> None:
    """Loaded and saved again by this engine and by the other: the same bytes, and the same continuation."""
    folder, file = folder_of(artifacts, layout=layout), tmp_path / "chat.session"
    with LLM(folder, engine, serving=ServingSettings(prefix_cache="radix"), threads=1) as first:
        answer = first.generate(PROMPT, max_new_tokens=5)
        history = [*PROMPT, *answer.token_ids]
        first.save_session(file, answer)
        whole = first.generate([*history, 9, 10], max_new_tokens=5)
    saved = read_session(file).arrays
    assert saved["recurrent_state_0"].dtype == np.int8 and saved["state_scales_0"].dtype == np.float32
    for name in ENGINES:
        with LLM(folder, name, serving=ServingSettings(prefix_cache="radix"), threads=1) as second:
            assert second.load_session(file).length == len(history) - 1
            second.save_session(tmp_path / "again.session", history[:-1])
            again = second.generate([*history, 9, 10], max_new_tokens=5)
        assert again.cached_tokens == len(history) - 1 and again.token_ids == whole.token_ids
        for key, array in read_session(tmp_path / "again.session").arrays.items():
            np.testing.assert_array_equal(array, saved[key])


@pytest.mark.parametrize("kind", [DType.INT8, pytest.param(DType.UINT8, marks=pytest.mark.slow)])
def test_cached_states_of_every_setting_are_the_same(kind: DType, artifacts: ArtifactCache) -> None:
    """States are in 8 bits already: a cache that packs states, on the device or in host memory, keeps them."""
    folder, found = folder_of(artifacts, kind), {}
    rng = np.random.default_rng(5)
    prompts = [[*PROMPT[:length], *rng.integers(3, 97, 4).tolist()] for length in (41, 30, 41, 17, 33, 16, 41)]
    for states in ("exact", "int8", "fp8"):
        settings = PrefixCacheSettings(states=states, host_bytes=1 << 20, host_states=states, cached_states=3)
        with LLM(folder, "onnxruntime", serving=ServingSettings(prefix_cache=settings), threads=1) as llm:
            answers = [llm.generate(prompt, max_new_tokens=6) for prompt in [*prompts, *prompts]]
        found[states] = [answer.token_ids for answer in answers]
        assert sum(answer.cached_tokens for answer in answers) > 250
    assert found["exact"] == found["int8"] == found["fp8"]
