"""Engines of attention and Mamba2 side by side with plugins, built for real by TensorRT-RTX without a GPU."""

from __future__ import annotations

import pytest

from hybridge.artifact.dtypes import DType
from hybridge.trt_plugins.build.builder import build_engine
from hybridge.trt_plugins.build.options import BuildOptions
from tests.support.artifacts import ArtifactCache

pytest.importorskip("tensorrt_rtx", reason="needs the tensorrt-rtx package")
pytest.importorskip("torch", reason="needs the export extra (torch)")
pytest.importorskip("transformers", reason="needs the export extra (transformers)")

ATTENTION = {"dense": {}, "paged": {"paged_attention": 1, "reshape_and_cache": 1}}


@pytest.mark.slow
@pytest.mark.parametrize("layout", ATTENTION)
def test_both_mixers_of_a_layer_are_plugins(layout: str, artifacts: ArtifactCache) -> None:
    """Without a norm after the gate, convolution, scan and gate are one plugin."""
    overrides = {"num_hidden_layers": 1, "head_dim": 64, "mamba_d_state": 16}
    artifact = artifacts.get("falcon_h1", "float32", overrides, dtype=DType.BFLOAT16, layout=layout).folder
    record = build_engine(artifact, BuildOptions(target="rtx-ada", library="tensorrt_rtx", max_seq_len=80))
    assert record.plugins and record.plugins.ops == {"mamba2_conv_scan": 1, **ATTENTION[layout]}
    states = {b["name"]: b["replaced_by"] for b in record.bindings if "replaced_by" in b}
    assert {b["aliases"]: b["name"] for b in record.bindings if "aliases" in b} == states
