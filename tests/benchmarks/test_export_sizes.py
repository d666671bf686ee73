"""The benchmark of exports of real sizes, with a model that takes a second."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.export_sizes import SIZES, Size, run
from hybridge.exporter.families.registry import decoder_config
from tests.support.tiny_models import BASE_CONFIGS


def test_every_size_is_a_decoder() -> None:
    assert [len(decoder_config(size.config).layers) for size in SIZES] == [28, 32, 52, 48, 108]


@pytest.mark.slow
def test_a_run_says_time_and_memory(tmp_path: Path) -> None:
    size = Size("tiny", {"model_type": "llama", **BASE_CONFIGS["llama"], "head_dim": 8}, most_seconds=600)
    document = run(1, (size,), tmp_path).to_json()
    result = document["results"]["tiny"]
    assert result["checkpoint_bytes"] > 50_000
    assert result["wall_s"]["median"] > 0 and result["peak_rss_bytes"]["max"] > 50e6
    assert {target["name"] for target in document["targets"]} == {"tiny, wall time", "tiny, peak memory"}
    assert list(tmp_path.iterdir()) == []
