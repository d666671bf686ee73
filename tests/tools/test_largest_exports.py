"""Exports of the largest published size of every family, and of quantised ones: processor time and memory."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from math import prod
from pathlib import Path

import pytest

from benchmarks.export import MOST_PEAK_BYTES_OF_SIZES, export
from hybridge.artifact.config import read_config
from hybridge.artifact.manifest import read_manifest
from hybridge.exporter.families.parameters import declared
from hybridge.exporter.families.registry import FAMILIES, decoder_config
from tools.published_configs import PUBLISHED
from tools.published_quantization import MODELOPT
from tools.sparse_checkpoint import write_sparse_checkpoint

MOST_SECONDS = 60.0
# A hf_quant_config.json: formats of weights, and how inputs of products are rounded.
QUANTISED = {
    "NVIDIA-Nemotron-3-Nano-30B-A3B-NVFP4": ({"modelopt NVFP4"}, {"fp4 (dynamic, by 16)"}),
    "NVIDIA-Nemotron-3-Super-120B-A12B-FP8": ({"modelopt FP8"}, {"fp8 (static)"}),
    "NVIDIA-Nemotron-3-Super-120B-A12B-NVFP4": ({"modelopt NVFP4"}, {"fp4 (dynamic, by 16)"}),
    "NVIDIA-Nemotron-3.5-Lightning-30B-A3B-NVFP4": ({"modelopt FP8", "modelopt W4A16_NVFP4"}, {"fp8 (static)"}),
    "Qwen3-8B-FP8": ({"modelopt FP8"}, {"fp8 (static)"}),
}


@cache
def largest() -> Mapping[str, str]:
    """Family -> the name of its published model with most parameters."""
    found: dict[str, tuple[int, str]] = {}
    for name, config in PUBLISHED.items():
        decoder = decoder_config(config)
        count = sum(prod(parameter.shape) for parameter in declared(decoder, "", {}))
        found[decoder.model_type] = max(found.get(decoder.model_type, (0, "")), (count, name))
    return {family: name for family, (_, name) in found.items()}


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_takes_a_minute_and_a_gigabyte_at_most(family: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of the processor, which other work on the machine does not change; the weights are in sparse files."""
    name = largest()[family]
    size = write_sparse_checkpoint(tmp_path / "checkpoint", PUBLISHED[name])
    use = export(tmp_path / "checkpoint", tmp_path / "out", "--no-scan")
    with capsys.disabled():
        print(f"\n{family}, {name}: {size / 1e9:.1f} GB, {use.cpu_s:.1f} s, {use.peak_rss / 1e6:.0f} MB")
    assert use.cpu_s < MOST_SECONDS
    assert use.peak_rss < MOST_PEAK_BYTES_OF_SIZES


@pytest.mark.slow
@pytest.mark.parametrize("name", QUANTISED)
def test_quantised_models_take_no_more(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Weights that are copied in another order are holes of sparse files: the test does not measure the disk."""
    quantization = MODELOPT.get(name, {"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}})
    size = write_sparse_checkpoint(
        tmp_path / "checkpoint", PUBLISHED[name.rpartition("-")[0]], quantization=quantization
    )
    use = export(tmp_path / "checkpoint", tmp_path / "out", "--no-scan", "--layout", "paged")
    with capsys.disabled():
        print(f"\n{name}: {size / 1e9:.1f} GB, {use.cpu_s:.1f} s, {use.peak_rss / 1e6:.0f} MB")
    assert use.cpu_s < MOST_SECONDS
    assert use.peak_rss < MOST_PEAK_BYTES_OF_SIZES
    record, notes = read_config(tmp_path / "out").quantization, read_manifest(tmp_path / "out").notes
    assert record is not None and (record.formats.keys(), record.inputs.keys()) == QUANTISED[name]
    assert not any("not rounded" in note for note in notes)
    assert any("keys and values in fp8" in note for note in notes)
