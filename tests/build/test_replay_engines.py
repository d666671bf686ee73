"""Engines that replay draft tokens: both files really built by TensorRT-RTX, without a GPU."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hybridge.artifact.engine_record import EngineRecord, read_engine_record
from hybridge.artifact.errors import SettingError
from hybridge.trt_plugins.build.builder import build_engine, engine_folder
from hybridge.trt_plugins.build.options import BuildOptions
from hybridge.trt_plugins.rewrites.draft_slots import DraftSlots
from tests.build.test_paged_build import hybrid
from tests.support.artifacts import ArtifactCache, Exported
from tests.support.effort import sample

pytest.importorskip("tensorrt_rtx", reason="needs the tensorrt-rtx package")
pytest.importorskip("transformers", reason="needs the export extra (transformers)")

DRAFTS = 3
OPTIONS = BuildOptions(
    target="rtx-ampere",
    library="tensorrt_rtx",
    plugins="on",
    speculative_tokens=DRAFTS,
    draft_states="replay",
    overwrite=True,
)
STORED = {
    "nemotron_h": {
        "stored_conv_state_0_x": ("bfloat16", ["tokens", 240]),
        "stored_recurrent_state_0_x": ("bfloat16", ["tokens", 6, 16]),
        "stored_recurrent_state_0_B": ("bfloat16", ["tokens", 3, 24]),
        "stored_recurrent_state_0_C": ("bfloat16", ["tokens", 3, 24]),
        "stored_recurrent_state_0_dt": ("bfloat16", ["tokens", 6]),
    },
    "qwen3_next": {
        "stored_conv_state_0_x": ("bfloat16", ["tokens", 320]),
        "stored_recurrent_state_0_q": ("bfloat16", ["tokens", 2, 32]),
        "stored_recurrent_state_0_k": ("bfloat16", ["tokens", 2, 32]),
        "stored_recurrent_state_0_v": ("bfloat16", ["tokens", 6, 32]),
        "stored_recurrent_state_0_g": ("float32", ["tokens", 6, 1]),
        "stored_recurrent_state_0_beta": ("bfloat16", ["tokens", 6]),
    },
}


@pytest.fixture(params=sample(STORED, on_push=("qwen3_next",)), scope="module")
def built(request: pytest.FixtureRequest, artifacts: ArtifactCache) -> tuple[str, Exported, EngineRecord]:
    exported = hybrid(artifacts, request.param)
    return request.param, exported, build_engine(exported.folder, OPTIONS)


def test_the_step_shows_what_its_operators_read(built: tuple[str, Exported, EngineRecord]) -> None:
    family, exported, record = built
    config = exported.config
    shown = {b["name"]: (b["dtype"], b["shape"]) for b in record.bindings}
    bindings = DraftSlots(DRAFTS, replays=True).bindings(config.bindings)
    own = [b.name for b in (*bindings.inputs, *bindings.outputs)]
    assert list(shown) == [*own, *STORED[family]]
    assert {name: shown[name] for name in STORED[family]} == STORED[family]
    # A free column: the most tokens of a deferred row write all others.
    assert shown["state_indices"] == ("int32", ["rows", DRAFTS + 2])
    decode = next(profile for profile in record.profiles if profile.name == "decode")
    assert decode.shapes["state_indices"][2][1] == DRAFTS + 2
    assert decode.shapes["input_ids"][2][0] == (DRAFTS + 1) * record.max_batch_size + 1
    assert sum(record.plugins.ops.values()) == record.layers["PLUGIN_V3"] == 4


def test_the_advance_has_the_recurrent_operators_alone(built: tuple[str, Exported, EngineRecord]) -> None:
    family, exported, record = built
    assert record.advance is not None
    layers = record.advance.layers
    assert layers["PLUGIN_V3"] == 2
    # Weights, and their types as the operators take them.
    assert set(layers) <= {"PLUGIN_V3", "CONSTANT", "CAST"}
    shown = {b["name"]: (b["dtype"], b["shape"]) for b in record.advance.bindings}
    assert {name: shown[name] for name in STORED[family]} == STORED[family]
    inputs = [b["name"] for b in record.advance.bindings if b["mode"] == "input"]
    rows, pools = ["query_start_loc", "state_indices", "num_accepted_tokens"], ["conv_state_0", "recurrent_state_0"]
    assert inputs == [*rows, *STORED[family], *pools]
    assert {b["aliases"]: b["name"] for b in record.advance.bindings if "aliases" in b} == {
        pool: f"present_{pool}" for pool in pools
    }
    folder = engine_folder(exported.folder, "rtx-ampere")
    assert (folder / record.advance.engine).stat().st_size == record.advance.nbytes > 0
    assert read_engine_record(folder / "engine.json") == record


def test_the_advance_takes_the_rows_of_a_decode_step(built: tuple[str, Exported, EngineRecord]) -> None:
    family, _, record = built
    assert record.advance is not None
    (profile,) = record.advance.profiles
    decode = next(profile for profile in record.profiles if profile.name == "decode").shapes
    for name in ("query_start_loc", "state_indices", "num_accepted_tokens", "conv_state_0", "recurrent_state_0"):
        assert profile.shapes[name] == decode[name]
    for name in STORED[family]:
        assert [shape[0] for shape in profile.shapes[name]] == [shape[0] for shape in decode["input_ids"]]


def networks(exported: Exported, tmp_path: Path) -> dict[str, list[dict[str, Any]]]:
    from hybridge.trt_plugins.build.child import child_environment

    command = [sys.executable, "-m", "tests.build.parse_replay", str(exported.folder), str(DRAFTS)]
    root = Path(__file__).resolve().parents[2]
    environment = child_environment(tmp_path)
    result = subprocess.run(command, env=environment, cwd=root, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    found: dict[str, list[dict[str, Any]]] = json.loads(result.stdout.splitlines()[-1])
    return found


def test_both_networks_layer_by_layer(built: tuple[str, Exported, EngineRecord], tmp_path: Path) -> None:
    """Each operator over pools is one plugin in both, with the same inputs except for the names of constants."""
    family, exported, _ = built
    layers = networks(exported, tmp_path)
    step, advance = (
        {layer["name"]: layer for layer in layers[name] if layer["type"] == "PLUGIN_V3"} for name in layers
    )
    assert set(advance) < set(step) and len(advance) == 2
    for name, layer in advance.items():
        again = step[name]
        assert [(t["dtype"], t["shape"]) for t in layer["inputs"]] == [
            (t["dtype"], t["shape"]) for t in again["inputs"]
        ]
        read = [t["name"] for t in layer["inputs"] if t["outside"]]
        assert read == [t["name"] for t in again["inputs"] if t["outside"] or t["name"] in STORED[family]]
        state, kept = layer["outputs"][1], layer["outputs"][0]
        assert state["outside"] and state["name"].startswith("present_") and not kept["outside"]
        # The types of states and of decays stay what they are.
        assert [t["dtype"] for t in layer["inputs"] if t["name"].startswith("recurrent_state")] in ([], ["float32"])
    written = {t["name"] for layer in layers["step"] for t in layer["outputs"] if t["outside"]}
    assert set(STORED[family]) < written


def test_what_has_no_states_to_replay_is_refused(artifacts: ArtifactCache) -> None:
    with pytest.raises(
        SettingError, match=r"draft_states: .* of at least 1, found 1 recurrent layers and 0: leave it out"
    ):
        build_engine(hybrid(artifacts, "nemotron_h").folder, replace(OPTIONS, speculative_tokens=0))
    llama = artifacts.get("llama", "bfloat16", {"num_hidden_layers": 1}, layout="paged").folder
    with pytest.raises(SettingError, match=r"draft_states: .* found 0 recurrent layers and 3: leave it out"):
        build_engine(llama, OPTIONS)
    dense = artifacts.get("llama", "bfloat16", {"num_hidden_layers": 1}).folder
    with pytest.raises(SettingError, match="speculative_tokens: expected an artifact of layout paged, found dense"):
        build_engine(dense, OPTIONS)


def test_native_layers_replay_nothing(artifacts: ArtifactCache) -> None:
    exported = hybrid(artifacts, "nemotron_h")
    with pytest.raises(SettingError, match=r"found native layers \(plugins are off\): use `draft_states='snapshot'`"):
        build_engine(exported.folder, replace(OPTIONS, plugins="off"))


def test_other_words_are_refused() -> None:
    with pytest.raises(SettingError, match="draft_states: expected snapshot or replay, found 'both'"):
        BuildOptions(draft_states="both")


@pytest.mark.parametrize("count", [-1, 16])
def test_numbers_without_kernels_are_refused(count: int) -> None:
    with pytest.raises(SettingError, match=f"speculative_tokens: expected an integer from 0 to 15, found {count}"):
        BuildOptions(speculative_tokens=count)
