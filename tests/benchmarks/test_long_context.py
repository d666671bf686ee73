"""The benchmark of long contexts, on the CPU and on small sizes."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("transformers", reason="the peer is transformers")

from benchmarks.long_context import LongContextSettings
from tests.benchmarks.measured import correct
from tests.benchmarks.shapes import TINY


@pytest.mark.slow
def test_it_measures_prompts_beyond_one_step(tmp_path: Path) -> None:
    settings = LongContextSettings(
        device="cpu",
        prompts=(7, 600),
        new_tokens=3,
        gate_tokens=9,
        gate_steps=2,
        repeats=1,
        model={**TINY, "max_position_embeddings": 1024},
        work=str(tmp_path),
        step_goal=1e6,
        prompt_goal=1e6,
    )
    document = correct("long_context", settings)
    assert [target["met"] for target in document["targets"]] == [True, False]
    contexts = document["results"]["contexts"]
    assert set(contexts) == {"7", "600"}
    assert set(contexts["600"]["prompt_ms"]) == {"ours", "transformers"}
