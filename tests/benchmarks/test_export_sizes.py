"""The benchmark of exports of real sizes, with a model that takes a second."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import export
from benchmarks.export import SIZES, Size, SizesSettings
from hybridge.exporter.families.registry import decoder_config
from tests.benchmarks.measured import document
from tests.support.tiny_models import BASE_CONFIGS


def test_every_size_is_a_decoder() -> None:
    assert [len(decoder_config(size.config).layers) for size in SIZES] == [28, 32, 52, 48, 108, 4]


@pytest.mark.slow
def test_a_run_says_time_and_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size = Size(
        "tiny", {"model_type": "llama", **BASE_CONFIGS["llama"], "head_dim": 8}, most_seconds=600, most_over_imports=600
    )
    monkeypatch.setattr(export, "SIZES", (size, Size("other", {}, 1)))
    found = document("export_sizes", SizesSettings(case="tiny", folder=str(tmp_path)))
    result = found["results"]["tiny"]
    assert result["checkpoint_bytes"] > 50_000
    assert result["wall_s"]["median"] > 0 and result["peak_rss_bytes"]["max"] > 50e6
    names = ("wall time", "peak memory", "wall time over that of the imports")
    assert {target["name"] for target in found["targets"]} == {f"tiny, {name}" for name in names}
    assert list(tmp_path.iterdir()) == []
