"""TensorRT-RTX builds artifacts for draft tokens from their portable functions, without a GPU."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hybridge.trt_plugins.build.builder import build_engine
from hybridge.trt_plugins.build.options import BuildOptions
from tests.support.artifacts import ArtifactCache
from tests.support.effort import sample

pytest.importorskip("tensorrt_rtx", reason="needs the tensorrt-rtx package")
AMPERE = BuildOptions(target="rtx-ampere", library="tensorrt_rtx")
LAYERS: dict[str, dict] = {
    "mamba2": {"num_hidden_layers": 1},
    "qwen3_next": {"num_hidden_layers": 1, "layer_types": ["linear_attention"]},
}


# ops/test_functions_tensorrt.py builds the gated delta rule from its body on every push.
@pytest.mark.parametrize("model_type", sample(LAYERS, on_push=("mamba2",)))
def test_engine_is_built_of_native_layers(model_type: str, artifacts: ArtifactCache) -> None:
    exported = artifacts.get(model_type, "float32", LAYERS[model_type], layout="paged")
    record = build_engine(exported.folder, replace(AMPERE, overwrite=True, plugins="off", speculative_tokens=3))
    assert record.nbytes > 0 and not record.plugins.ops
    slots = next(binding for binding in record.bindings if binding["name"] == "state_indices")
    assert slots["shape"] == ["rows", 5] and record.row_buckets == [1, 2, 3]
    decode = next(profile for profile in record.profiles if profile.name == "decode")
    rows, tokens = (decode.shapes[name][2][0] for name in ("num_accepted_tokens", "input_ids"))
    # Three rows of four tokens, and padding.
    assert rows == 4 and tokens == decode.shapes["logits_indices"][2][0] == 13
    # A slot each, one for the state after each token, and those of a prefix cache.
    assert decode.shapes["recurrent_state_0"][2][0] == 3 + 3 * 4 + 3
