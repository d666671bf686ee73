"""Engines of gated delta nets with plugins, built for real by TensorRT-RTX without a GPU."""

from __future__ import annotations

from typing import Any

import pytest

from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import SettingError
from hybridge.trt_plugins.build.builder import build_engine
from hybridge.trt_plugins.build.options import BuildOptions
from tests.support.artifacts import ArtifactCache

pytest.importorskip("tensorrt_rtx", reason="needs the tensorrt-rtx package")
pytest.importorskip("torch", reason="needs the export extra (torch)")
pytest.importorskip("transformers", reason="needs the export extra (transformers)")

LAYERS: dict[str, Any] = {"num_hidden_layers": 2, "full_attention_interval": 2, "layer_types": None}
KERNEL_SIZES = {"linear_key_head_dim": 32, "linear_value_head_dim": 48}


def options(plugins: str) -> BuildOptions:
    return BuildOptions(target="rtx-ada", library="tensorrt_rtx", max_seq_len=80, plugins=plugins)


def test_convolution_and_delta_rule_are_plugins(artifacts: ArtifactCache) -> None:
    artifact = artifacts.get("qwen3_next", "float32", {**LAYERS, **KERNEL_SIZES}, dtype=DType.BFLOAT16).folder
    record = build_engine(artifact, options("auto"))
    assert record.plugins and record.plugins.ops == {"causal_conv1d": 1, "gated_delta_rule": 1}, record.plugins.reason
    assert record.layers["PLUGIN_V3"] == 2
    states = {b["name"]: b["replaced_by"] for b in record.bindings if "replaced_by" in b}
    assert {b["aliases"]: b["name"] for b in record.bindings if "aliases" in b} == states


def test_head_sizes_without_kernels_are_refused_by_name(artifacts: ArtifactCache) -> None:
    sizes, export = {**LAYERS, "linear_key_head_dim": 12}, {"dtype": DType.FLOAT16, "kernels": "optional"}
    artifact = artifacts.get("qwen3_next", "float32", sizes, **export).folder
    words = "plugins: node .*key_size from 8 to 256 in multiples of 8, found key_size 12"
    with pytest.raises(SettingError, match=words):
        build_engine(artifact, options("on"))
