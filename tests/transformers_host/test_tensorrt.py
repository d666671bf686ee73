"""generate() over a TensorRT engine, which a stand-in executes as if its GPU were here."""

from __future__ import annotations

from pathlib import Path

import pytest

from hybridge import accelerate
from tests.transformers_host.conftest import LoadModel
from tests.transformers_host.generations import BATCH, BATCH_MASK, BEAMS, SAMPLED, exactly, generated

pytest.importorskip("tensorrt_rtx", reason="needs the tensorrt-rtx package")

from hybridge.transformers_host.artifact_cache import cached_artifact
from tests.runtime.tensorrt.paged_double import ParsedEngine, use_double

ROWS, TOKENS = 4, 96


@pytest.mark.slow
def test_same_tokens_and_nothing_left(
    load_model: LoadModel, cache_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load_model("nemotron_h", hybrid_override_pattern="M*-")
    greedy = {"input_ids": BATCH, "attention_mask": BATCH_MASK, "do_sample": False, **exactly(12)}
    ways = {"a padded batch, greedy": greedy, "sampled": SAMPLED, "beams": BEAMS}
    expected = {name: generated(model, **way) for name, way in ways.items()}

    artifact = cached_artifact(model, cache_folder, ROWS, TOKENS)
    memory = use_double(ParsedEngine(artifact, tmp_path, plugins="off"), monkeypatch)

    limits = {"max_batch_size": ROWS, "max_cache_len": TOKENS}
    with accelerate(model, "tensorrt", cache_folder=cache_folder, **limits) as fast:
        for name, way in ways.items():
            assert generated(fast, **way) == expected[name], name
    memory.check_nothing_left()
    assert generated(model, **greedy) == expected["a padded batch, greedy"]
