"""TensorRT-RTX builds a paged artifact from its portable functions, without a GPU."""

from __future__ import annotations

from dataclasses import replace

import pytest

from artifact.errors import UnsupportedError
from tests.support.artifacts import ArtifactCache, Exported
from trt_plugins.build.builder import build_engine
from trt_plugins.build.options import BuildOptions
from trt_plugins.build.presets import read_preset
from trt_plugins.build.profiles import Limits, engine_profiles

pytest.importorskip("tensorrt_rtx", reason="needs the tensorrt-rtx package")
AMPERE = BuildOptions(preset="rtx-ampere", library="tensorrt_rtx")


@pytest.fixture(scope="module")
def paged(artifacts: ArtifactCache) -> Exported:
    return artifacts.get("llama", "bfloat16", {"num_hidden_layers": 1}, layout="paged")


def test_paged_engine_is_built_of_native_layers(paged: Exported) -> None:
    record = build_engine(paged.folder, replace(AMPERE, overwrite=True))
    assert record.nbytes > 0 and not record.plugins.ops
    assert "head_dim from 64 to 256 in multiples of 8, found head_dim 8" in record.plugins.reason
    pool = next(binding for binding in record.bindings if binding["name"] == "kv_pool_0")
    assert pool["shape"] == [2, "num_blocks", 16, *paged.config.bindings.input("kv_pool_0").shape[3:]]
    assert pool["replaced_by"] == "present_kv_pool_0"


def test_heads_without_kernels_are_refused_by_name(paged: Exported) -> None:
    with pytest.raises(UnsupportedError, match=r"--plugins on: node .*head_dim from 64 to 256"):
        build_engine(paged.folder, replace(AMPERE, plugins="on", overwrite=True))


@pytest.fixture(scope="module")
def kernel_heads(artifacts: ArtifactCache) -> Exported:
    return artifacts.get("llama", "bfloat16", {"num_hidden_layers": 1, "head_dim": 64}, layout="paged")


def test_pages_are_never_copied(kernel_heads: Exported) -> None:
    with pytest.raises(UnsupportedError, match=r"expected --plugin-states aliased, found separate: reshape_and_cache"):
        build_engine(kernel_heads.folder, replace(AMPERE, plugins="on", plugin_states="separate", overwrite=True))


def test_pages_are_written_and_attended_by_plugins(kernel_heads: Exported) -> None:
    record = build_engine(kernel_heads.folder, replace(AMPERE, plugins="on", overwrite=True))
    assert record.plugins.ops == {"reshape_and_cache": 1, "paged_attention": 1} and record.plugins.version == "2"
    assert record.layers["PLUGIN_V3"] == 2
    assert {b["aliases"]: b["name"] for b in record.bindings if "aliases" in b} == {"kv_pool_0": "present_kv_pool_0"}


def test_profiles_hold_every_row_at_its_longest(paged: Exported) -> None:
    prefill, decode = engine_profiles(paged.config, read_preset("rtx-ampere"), Limits(3, 96))
    assert [p.name for p in (prefill, decode)] == ["prefill", "decode"]
    assert prefill.shapes["kv_pool_0"][2][:3] == [2, 3 * 96 // 16, 16]
    assert prefill.shapes["block_table"][2] == [3, 96 // 16]
    assert decode.shapes["input_ids"][2] == decode.shapes["seq_lens"][2] == [3]
    assert decode.shapes["query_start_loc"] == [[2], *([n[0] + 1] for n in decode.shapes["seq_lens"][1:])]
    assert prefill.shapes["input_ids"][2][0] > 96
