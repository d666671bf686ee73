"""Engines of gated short convolutions with plugins, built for real by TensorRT-RTX without a GPU."""

from __future__ import annotations

import pytest

from hybridge.artifact.dtypes import DType
from hybridge.trt_plugins.build.builder import build_engine
from hybridge.trt_plugins.build.options import BuildOptions
from tests.support.artifacts import ArtifactCache

pytest.importorskip("tensorrt_rtx", reason="needs the tensorrt-rtx package")
pytest.importorskip("torch", reason="needs the export extra (torch)")
pytest.importorskip("transformers", reason="needs the export extra (transformers)")


@pytest.mark.slow
@pytest.mark.parametrize("width", [3, 7])
@pytest.mark.parametrize("layout", ["dense", "paged"])
def test_the_convolution_is_a_plugin(layout: str, width: int, artifacts: ArtifactCache) -> None:
    """Its only state is updated in place."""
    overrides = {"num_hidden_layers": 2, "layer_types": ["conv", "full_attention"], "conv_L_cache": width}
    options = {"dtype": DType.BFLOAT16, "layout": layout}
    artifact = artifacts.get("lfm2", "float32", {**overrides, "head_dim": 64}, **options).folder
    build = BuildOptions(target="rtx-ada", library="tensorrt_rtx", max_seq_len=80, plugins="on")
    record = build_engine(artifact, build)
    assert record.plugins and record.plugins.ops["causal_conv1d"] == 1
    assert set(record.plugins.ops) <= {"causal_conv1d", "paged_attention", "reshape_and_cache"}
    states = {b["name"]: b["replaced_by"] for b in record.bindings if "replaced_by" in b}
    assert "conv_state_0" in states and "recurrent_state_0" not in states
    assert {b["aliases"]: b["name"] for b in record.bindings if "aliases" in b} == states
