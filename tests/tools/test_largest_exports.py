"""Exports of the largest published size of every family: processor time and memory."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from math import prod
from pathlib import Path

import pytest

from benchmarks.export import MOST_PEAK_BYTES_OF_SIZES, export
from hybridge.exporter.families.parameters import declared
from hybridge.exporter.families.registry import FAMILIES, decoder_config
from tools.published_configs import PUBLISHED
from tools.sparse_checkpoint import write_sparse_checkpoint

MOST_SECONDS = 60.0
# The export writes 64 GiB of experts with their rows in another order: memory and disk bound its time.
REWRITTEN = ("gpt_oss",)


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
    assert use.cpu_s < MOST_SECONDS or family in REWRITTEN
    assert use.peak_rss < MOST_PEAK_BYTES_OF_SIZES
