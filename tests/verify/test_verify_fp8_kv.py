"""Paged artifacts whose keys and values are e4m3: what an export declares, and that every engine runs it."""

from __future__ import annotations

from itertools import product

import numpy as np
import onnx
import pytest

from hybridge.artifact.config import config_from_json, config_to_json
from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import ArtifactError, SettingError
from hybridge.exporter.options import ExportOptions
from hybridge.exporter.plan import plan_export
from hybridge.inspection import inspect_path
from hybridge.runtime.engines.paged_factory import create_paged_engine
from hybridge.verification.options import E4M3_TOLERANCE, VerifyOptions, default_tolerance
from hybridge.verification.paged_sequences import PagedSequences
from hybridge.verification.verifier import verify
from tests.support.artifacts import ArtifactCache, Exported
from tests.support.effort import sample

FP8 = "fp8_e4m3"
WINDOW = {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1}
OVERRIDES: dict[str, dict] = {"nemotron_h": {}, "qwen3": WINDOW}


def exported(artifacts: ArtifactCache, model_type: str = "nemotron_h", overrides: dict | None = None) -> Exported:
    return artifacts.get(model_type, "float32", overrides, layout="paged", kv_dtype=FP8)


@pytest.mark.parametrize(
    ("model_type", "engine"),
    sample(product(OVERRIDES, ("auto", "torch")), ()),
)
def test_artifact_agrees_with_transformers(model_type: str, engine: str, artifacts: ArtifactCache) -> None:
    made = exported(artifacts, model_type, OVERRIDES[model_type])
    options = VerifyOptions(engine=engine, prompt_lengths=(1, 7, 33), decode_steps=3)
    report = verify(made.checkpoint, made.folder, options)
    assert report.passed and report.tolerance == E4M3_TOLERANCE, report.verdict()
    assert {"key", "value", "logits"} <= {c.item for c in report.comparisons}
    # Where all are rounded alike, only the order of sums differs.
    assert float(np.median([c.error for c in report.comparisons if c.error is not None])) < 1e-5


def test_tolerances_are_wider_than_those_of_whole_numbers() -> None:
    assert default_tolerance("onnxruntime", DType.FLOAT32, kv_scales=True) == E4M3_TOLERANCE
    assert default_tolerance("torch", DType.BFLOAT16) == default_tolerance("torch", DType.BFLOAT16, kv_scales=True)


def test_all_engines_round_in_the_same_way(artifacts: ArtifactCache) -> None:
    """Keys and values of the first layer with attention differ where one was next to the middle of two numbers."""
    made, tokens = exported(artifacts), np.arange(3, 29)
    states, logits = [], []
    for name in ("onnxruntime", "onnxruntime-portable", "torch"):
        engine = create_paged_engine(made.folder, name)
        sequences = PagedSequences(engine, 1, 40, 16)
        handle = sequences.add()
        sequences.step({handle: tokens[:20]})
        logits.append(np.array([sequences.step({handle: tokens[i : i + 1]})[handle] for i in range(20, 26)]))
        assert sequences.untouched()
        states.append(sequences.states(handle))
        engine.close()
    for found, other in zip(states[1:], logits[1:], strict=True):
        for name in ("past_key_0", "past_value_0"):
            differing = found[name] != states[0][name]
            assert differing.mean() < 0.01
            assert (np.abs(found[name] - states[0][name]) <= 0.126 * np.abs(states[0][name])).all()
        assert np.linalg.norm(other - logits[0]) < 5e-3 * np.linalg.norm(logits[0])


def test_what_the_export_declares(artifacts: ArtifactCache) -> None:
    made = exported(artifacts)
    config, layer = made.config, made.config.kv_layers[0]
    pool, scales = config.bindings.input("kv_pool_0"), config.bindings.input("kv_scales_0")
    assert (pool.dtype, pool.shape[3:]) == (DType.UINT8, (layer.num_kv_heads, layer.head_dim))
    assert (scales.dtype, scales.shape) == (DType.FLOAT32, (2, "num_blocks", layer.num_kv_heads, "block_size"))
    assert config_to_json(config)["kv_cache_dtype"] == FP8
    assert config_from_json(config_to_json(config)) == config
    model = onnx.load(made.folder / "model.onnx", load_external_data=False)
    assert {"reshape_and_cache_fp8", "paged_attention_fp8"} <= {node.op_type for node in model.graph.node}


def test_a_token_takes_a_byte_a_number_and_a_scale_a_head(artifacts: ArtifactCache) -> None:
    made = exported(artifacts)
    sizes: list[int] = [2 * layer.num_kv_heads * (layer.head_dim + 4) for layer in made.config.kv_layers]
    expected = sum(sizes)
    plan = plan_export(made.checkpoint, made.options).to_json()
    assert plan["kv_cache_bytes_per_token"] == expected
    found: list[int] = [state.bytes_per_token for state in inspect_path(made.folder).states]
    assert sum(found) == expected
    engine = create_paged_engine(made.folder, "onnxruntime")
    assert engine.block_bytes(16) == 16 * expected
    engine.close()


def test_the_dense_layout_is_refused() -> None:
    with pytest.raises(SettingError, match="kv_dtype: expected `layout='paged'` for fp8_e4m3"):
        ExportOptions(kv_dtype=FP8)
    with pytest.raises(SettingError, match="kv_dtype: expected auto or fp8_e4m3, found 'int4'"):
        ExportOptions(kv_dtype="int4", layout="paged")


def test_a_config_of_another_type_is_refused(artifacts: ArtifactCache) -> None:
    data = config_to_json(exported(artifacts).config)
    with pytest.raises(ArtifactError, match="export the checkpoint again"):
        config_from_json({**data, "kv_cache_dtype": "float32"})
    dense = config_to_json(artifacts.get("nemotron_h", "float32").config)
    with pytest.raises(ArtifactError, match="whose caches have no scales"):
        config_from_json({**dense, "kv_cache_dtype": FP8})
