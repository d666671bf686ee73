"""Artifacts whose recurrent states have rings: what an export declares, and that engines agree with transformers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from hybridge.artifact.config import config_from_json, config_to_json
from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import ArtifactError, SettingError
from hybridge.exporter.options import ExportOptions
from hybridge.exporter.plan import plan_export
from hybridge.inspection import inspect_path
from hybridge.runtime.llm import LLM
from hybridge.runtime.prefix_cache.session_file import read_session
from hybridge.runtime.prefix_cache.settings import PrefixCacheSettings
from hybridge.runtime.serving.settings import ServingSettings
from hybridge.runtime.speculation.settings import SpeculationSettings
from hybridge.verification.options import VerifyOptions
from hybridge.verification.verifier import verify
from tests.support.artifacts import ArtifactCache, Exported
from tests.verify import network_cases

RINGS: dict[str, Any] = {"state_rings": True}
PAGED = {"layout": "paged"}
PROMPT = np.random.default_rng(3).integers(3, 97, 33).tolist()
# Family, options, engine, draft tokens.
CASES: dict[str, tuple[str, dict[str, Any], str, int]] = {
    "nemotron_h dense": ("nemotron_h", {}, "auto", 0),
    "nemotron_h paged": ("nemotron_h", PAGED, "auto", 3),
    "nemotron_h torch": ("nemotron_h", PAGED, "torch", 3),
    "nemotron_h torch dense": ("nemotron_h", {}, "torch", 0),
    "qwen3_next dense": ("qwen3_next", {}, "auto", 0),
    "qwen3_next paged": ("qwen3_next", PAGED, "auto", 3),
    "qwen3_next torch": ("qwen3_next", PAGED, "torch", 3),
    "kimi_linear paged": ("kimi_linear", PAGED, "auto", 3),
    "falcon_h1 paged": ("falcon_h1", PAGED, "auto", 0),
    "minimax dense": ("minimax", {}, "auto", 0),
    "nemotron_h bfloat16": ("nemotron_h", {"dtype": DType.BFLOAT16, "state_dtype": DType.BFLOAT16}, "torch", 0),
}
# On push, tests of operators run both forms.
pytestmark = pytest.mark.slow


def made(artifacts: ArtifactCache, family: str = "nemotron_h", **options: Any) -> Exported:
    return artifacts.get(family, "float32", **{**RINGS, **options})


@pytest.mark.parametrize("name", CASES)
def test_artifact_agrees_with_transformers(name: str, artifacts: ArtifactCache) -> None:
    """Decoding fills a ring twice after each prompt; rows of other lengths have prompts in between."""
    family, options, engine, drafts = CASES[name]
    artifact = made(artifacts, family, **options)
    settings = VerifyOptions(engine=engine, prompt_lengths=(1, 7, 33), decode_steps=36, speculative_tokens=drafts)
    report = verify(artifact.checkpoint, artifact.folder, settings)
    assert report.passed, report.verdict()
    assert ("draft tokens" in {c.scenario for c in report.comparisons}) == bool(drafts)
    assert {"recurrent_state", "logits"} <= {c.item for c in report.comparisons}


@pytest.mark.parametrize("engine", ["tensorrt-network", "tensorrt-network-native"])
@pytest.mark.parametrize(("layout", "mode"), [("dense", None), ("paged", "replay"), ("paged", "snapshot")])
@pytest.mark.parametrize("family", ["nemotron_h", "qwen3_next", "kimi_linear"])
def test_networks_of_plugins_and_of_native_layers(
    family: str, layout: str, mode: str | None, engine: str, artifacts: ArtifactCache
) -> None:
    pytest.importorskip("tensorrt_rtx", reason="needs the tensorrt-rtx package")
    made_of = network_cases.exported(artifacts, family, layout=layout, **RINGS)
    # Native layers write no states in place, which a replay needs.
    replays = mode == "replay" and engine == "tensorrt-network"
    drafts = 2 if replays or mode == "snapshot" else 0
    settings = VerifyOptions(engine, (1, 11), 20, speculative_tokens=drafts, draft_states=mode if drafts else "auto")
    report = verify(made_of.checkpoint, made_of.folder, settings)
    assert report.passed, report.verdict()
    assert not [note for note in report.notes if "only native layers" in note]


@pytest.mark.parametrize("mode", ["replay", "snapshot"])
def test_draft_tokens_of_both_rollbacks(mode: str, artifacts: ArtifactCache) -> None:
    artifact = made(artifacts, **PAGED)
    settings = VerifyOptions(
        engine="onnxruntime", prompt_lengths=(7,), decode_steps=20, speculative_tokens=3, draft_states=mode
    )
    report = verify(artifact.checkpoint, artifact.folder, settings)
    assert report.passed, report.verdict()


def test_what_the_export_declares(artifacts: ArtifactCache) -> None:
    for family, tensors, options in (("nemotron_h", "x B steps", {}), ("qwen3_next", "k written decays", PAGED)):
        artifact = made(artifacts, family, **options)
        config = artifact.config
        names = [state.name for state in config.bindings.states]
        behind = names.index("recurrent_state_0") + 1
        assert names[behind : behind + 4] == [f"ring_{tensor}_0" for tensor in (*tensors.split(), "lengths")]
        assert config.bindings.input("ring_lengths_0").dtype is DType.INT32
        assert config_from_json(config_to_json(config)) == config
        model = onnx.load(artifact.folder / "model.onnx", load_external_data=False)
        assert any(node.op_type.endswith("_ring") for node in model.graph.node)
        layers = {state.name: state.layer for state in inspect_path(artifact.folder).states}
        assert layers["ring_lengths_0"] == layers["recurrent_state_0"]
        plain = artifacts.get(family, "float32", **options).config
        assert "recurrent_state_ring_heads" not in config_to_json(plain)


def test_what_has_no_rings_is_refused_by_name(artifacts: ArtifactCache) -> None:
    for family, words in (("mamba", "selective_scan"), ("llama", "found none"), ("lfm2", "found none")):
        plain = artifacts.get(family, "float32")
        with pytest.raises(SettingError, match=rf"state_rings: expected .*{words}"):
            plan_export(plain.checkpoint, replace(plain.options, **RINGS))
    with pytest.raises(SettingError, match="state_rings: expected states of 16 or 32 bits, found state_dtype int8"):
        ExportOptions(state_dtype=DType.INT8, **RINGS)


def test_a_config_that_contradicts_its_rings_is_refused(artifacts: ArtifactCache) -> None:
    data = config_to_json(made(artifacts).config)
    for key, value, words in (
        ("recurrent_state_ring_heads", 1000, "a divisor of"),
        ("recurrent_state_ring_decays", 1000, "recurrent_state_ring_decays: expected 1"),
    ):
        with pytest.raises(ArtifactError, match=words):
            config_from_json({**data, key: value})
    plain = config_to_json(artifacts.get("nemotron_h", "float32").config)
    rings = {key: data[key] for key in data if "ring" in key}
    with pytest.raises(
        ArtifactError, match=r"expected the state ring_x_0 float32\['batch', .*\] beside recurrent_state_0"
    ):
        config_from_json({**plain, **rings})


def test_a_dense_artifact_continues_from_a_session(artifacts: ArtifactCache, tmp_path: Path) -> None:
    folder, file = made(artifacts).folder, tmp_path / "chat.session"
    with LLM(folder, "onnxruntime", threads=1) as plain:
        first = plain.generate(PROMPT, max_new_tokens=20)
        history = [*PROMPT, *first.token_ids]
        plain.save_session(file, first)
    with LLM(folder, "onnxruntime", threads=1) as other:
        whole = other.generate([*history, 9, 10], max_new_tokens=20)
    with LLM(folder, "onnxruntime", threads=1) as loaded:
        assert loaded.load_session(file).length == len(history) - 1
        again = loaded.generate([*history, 9, 10], max_new_tokens=20)
    assert again.cached_tokens == len(history) - 1 and again.token_ids == whole.token_ids


@pytest.mark.parametrize("engine", ["onnxruntime", "torch"])
def test_sessions_cached_prefixes_and_drafts_continue_from_rings(
    engine: str, artifacts: ArtifactCache, tmp_path: Path
) -> None:
    """Answers are those of an engine that computes every token anew; a session holds the ring where a step left it."""
    folder, file = made(artifacts, **PAGED).folder, tmp_path / "chat.session"
    cached = ServingSettings(prefix_cache=PrefixCacheSettings(states="int8", host_bytes=1 << 20, cached_states=3))
    drafting = ServingSettings(speculation=SpeculationSettings(tokens=3, adaptive=False))
    with LLM(folder, engine, threads=1) as plain:
        first = plain.generate(PROMPT, max_new_tokens=20)
        history = [*PROMPT, *first.token_ids]
        second = plain.generate([*history, 9, 10], max_new_tokens=20)
    with LLM(folder, engine, serving=ServingSettings(prefix_cache="radix"), threads=1) as llm:
        answer = llm.generate(PROMPT, max_new_tokens=20)
        llm.save_session(file, answer)
        again = llm.generate([*history, 9, 10], max_new_tokens=20)
        assert (answer.token_ids, again.token_ids) == (first.token_ids, second.token_ids)
    # A step each for the prompt's last token and 19 of the answer: 16 were written, and 4 are in the ring.
    assert read_session(file).arrays["ring_lengths_0"].flatten().tolist() == [4]
    with LLM(folder, engine, serving=ServingSettings(prefix_cache="radix"), threads=1) as other:
        assert other.load_session(file).length == len(history) - 1
        loaded = other.generate([*history, 9, 10], max_new_tokens=20)
        assert loaded.cached_tokens == len(history) - 1 and loaded.token_ids == second.token_ids
    for serving in (cached, drafting):  # rings are not rounded with the states, nor left with rejected tokens
        with LLM(folder, engine, serving=serving, threads=1) as llm:
            for _ in range(2):
                assert llm.generate(PROMPT, max_new_tokens=20).token_ids == first.token_ids
