"""TensorRT-RTX builds artifacts for draft tokens from their portable functions, without a GPU."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest

from hybridge.artifact.config import MTP_MODEL_FILE
from hybridge.artifact.engine_record import (
    ENGINE_FILE,
    ENGINES_FOLDER,
    HEAD_FOLDER,
    ProfileRecord,
    read_engine_record,
)
from hybridge.inspection.engine import inspect_engine
from hybridge.trt_plugins.build.build_plan import plan_build
from hybridge.trt_plugins.build.builder import build_engine
from hybridge.trt_plugins.build.options import BuildOptions
from tests.support.artifacts import ArtifactCache

pytest.importorskip("tensorrt_rtx", reason="needs the tensorrt-rtx package")
NATIVE = BuildOptions(target="rtx-ampere", library="tensorrt_rtx", overwrite=True, plugins="off", speculative_tokens=3)
LAYERS: dict[str, dict] = {
    "mamba2": {"num_hidden_layers": 1},
    "qwen3_next": {"num_hidden_layers": 1, "layer_types": ["linear_attention"]},
}


def check_profiles(profiles: list[ProfileRecord]) -> None:
    decode = next(profile for profile in profiles if profile.name == "decode")
    rows, tokens = (decode.shapes[name][2][0] for name in ("num_accepted_tokens", "input_ids"))
    # Three rows of four tokens, and padding.
    assert rows == 4 and tokens == decode.shapes["logits_indices"][2][0] == 13
    # A slot each, one for the state after each token, and those of a prefix cache.
    assert decode.shapes["recurrent_state_0"][2][0] == 3 + 3 * 4 + 3


def exported(artifacts: ArtifactCache, model_type: str) -> Path:
    return artifacts.get(model_type, "float32", LAYERS[model_type], layout="paged").folder


def test_rows_have_slots_for_draft_tokens(artifacts: ArtifactCache) -> None:
    """On every push, verify computes the network that the parser makes of such a graph."""
    plan = plan_build(exported(artifacts, "mamba2"), NATIVE)
    assert plan.config.bindings.input("state_indices").shape == ("rows", 5)
    check_profiles(plan.fitted(plan.parser_model()).profiles)


@pytest.mark.slow
@pytest.mark.parametrize("model_type", LAYERS)
def test_engine_is_built_of_native_layers(model_type: str, artifacts: ArtifactCache) -> None:
    record = build_engine(exported(artifacts, model_type), NATIVE)
    assert record.nbytes > 0 and not record.plugins.ops
    slots = next(binding for binding in record.bindings if binding["name"] == "state_indices")
    assert slots["shape"] == ["rows", 5] and record.row_buckets == [1, 2, 3]
    check_profiles(record.profiles)


@pytest.mark.slow
def test_the_prediction_head_gets_an_engine_beside_the_models(artifacts: ArtifactCache) -> None:
    made = artifacts.get("nemotron_h", "float32", {"hybrid_override_pattern": "M*-"}, mtp_pattern="*-", layout="paged")
    record = build_engine(made.folder, NATIVE)
    folder = made.folder / ENGINES_FOLDER / "rtx-ampere" / HEAD_FOLDER
    head = read_engine_record(folder / ENGINE_FILE)
    assert (folder / head.engine).stat().st_size == head.nbytes
    assert head.model_sha256 == hashlib.sha256((made.folder / MTP_MODEL_FILE).read_bytes()).hexdigest()
    outputs, inputs = ([b["name"] for b in each.bindings] for each in (record, head))
    assert "hidden_states" in outputs and {"hidden_rows", "hidden_slots", "own_hidden_states"} <= {*inputs}
    assert inspect_engine(folder).matches_model and inspect_engine(folder.parent).matches_model
    record = build_engine(made.folder, replace(NATIVE, mtp=False))
    assert "hidden_states" not in [b["name"] for b in record.bindings] and not folder.exists()
