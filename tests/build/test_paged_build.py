"""TensorRT-RTX builds a paged artifact from its portable functions, without a GPU."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from hybridge.artifact.errors import EngineError, SettingError
from hybridge.trt_plugins.build.builder import build_engine
from hybridge.trt_plugins.build.options import BuildOptions
from hybridge.trt_plugins.build.presets import read_preset
from hybridge.trt_plugins.build.profiles import Limits, engine_profiles
from tests.support.artifacts import ArtifactCache, Exported
from tests.support.effort import sample

pytest.importorskip("tensorrt_rtx", reason="needs the tensorrt-rtx package")
AMPERE = BuildOptions(target="rtx-ampere", library="tensorrt_rtx")


@pytest.fixture(scope="module")
def paged(artifacts: ArtifactCache) -> Exported:
    return artifacts.get("llama", "bfloat16", {"num_hidden_layers": 1}, layout="paged")


# On every push, verify computes the networks that the parser makes of such graphs.
@pytest.mark.slow
def test_paged_engine_is_built_of_native_layers(paged: Exported) -> None:
    record = build_engine(paged.folder, replace(AMPERE, overwrite=True))
    assert record.nbytes > 0 and not record.plugins.ops
    assert "head_dim 576 or from 64 to 256 in multiples of 8, found head_dim 8" in record.plugins.reason
    pool = next(binding for binding in record.bindings if binding["name"] == "kv_pool_0")
    assert pool["shape"] == [2, "num_blocks", 16, *paged.config.bindings.input("kv_pool_0").shape[3:]]
    assert pool["replaced_by"] == "present_kv_pool_0"


def test_heads_without_kernels_are_refused_by_name(paged: Exported) -> None:
    with pytest.raises(SettingError, match=r"plugins: node .*head_dim 576 or from 64 to 256"):
        build_engine(paged.folder, replace(AMPERE, plugins="on", overwrite=True))


@pytest.fixture(scope="module")
def kernel_heads(artifacts: ArtifactCache) -> Exported:
    return artifacts.get("llama", "bfloat16", {"num_hidden_layers": 1, "head_dim": 64}, layout="paged")


def test_pages_are_never_copied(kernel_heads: Exported) -> None:
    with pytest.raises(SettingError, match=r"expected `plugin_states='aliased'`, found separate: reshape_and_cache"):
        build_engine(kernel_heads.folder, replace(AMPERE, plugins="on", plugin_states="separate", overwrite=True))


def test_pages_are_written_and_attended_by_plugins(kernel_heads: Exported) -> None:
    record = build_engine(kernel_heads.folder, replace(AMPERE, plugins="on", overwrite=True))
    assert record.plugins.ops == {"reshape_and_cache": 1, "paged_attention": 1} and record.plugins.version == "2"
    assert record.layers["PLUGIN_V3"] == 2
    assert {b["aliases"]: b["name"] for b in record.bindings if "aliases" in b} == {"kv_pool_0": "present_kv_pool_0"}


def hybrid(artifacts: ArtifactCache, family: str, **options: int) -> Exported:
    """One recurrent layer and, where the family has it, one of attention, of sizes that the kernels have."""
    every: dict[str, dict[str, Any]] = {
        "nemotron_h": {"hybrid_override_pattern": "M*", "mamba_head_dim": 16, "ssm_state_size": 24, "head_dim": 64},
        "qwen3_next": {
            "num_hidden_layers": 2,
            "layer_types": ["linear_attention", "full_attention"],
            "head_dim": 64,
            "linear_key_head_dim": 32,
            "linear_value_head_dim": 32,
        },
        "jamba": {"num_hidden_layers": 2, "attn_layer_period": 2, "num_experts": 1, "head_dim": 64},
        # A latent and a shared part of 64 channels together, which the kernels of paged attention take.
        "kimi_linear": {
            "num_hidden_layers": 2,
            "layer_types": ["linear_attention", "full_attention"],
            "linear_head_dim": 32,
            "kv_lora_rank": 48,
            "qk_rope_head_dim": 16,
        },
    }
    return artifacts.get(family, "bfloat16", every[family], layout="paged", **options)


@pytest.mark.parametrize(
    ("family", "speculative_tokens", "mixers", "operators"),
    [
        ("nemotron_h", 0, "joined", {"mamba2_conv_scan"}),
        pytest.param("nemotron_h", 0, "separate", {"causal_conv1d", "update_ssm_state"}, marks=pytest.mark.slow),
        # No kernel has snapshots of a joined mixer's states.
        pytest.param("nemotron_h", 3, "joined", {"causal_conv1d", "update_ssm_state"}, marks=pytest.mark.slow),
        pytest.param("qwen3_next", 0, "joined", {"causal_conv1d", "gated_delta_rule"}, marks=pytest.mark.slow),
        # On every push, test_replay_engines.py parses it and test_gated_delta_plugin.py builds its dense form.
        pytest.param("qwen3_next", 3, "joined", {"causal_conv1d", "gated_delta_rule"}, marks=pytest.mark.slow),
        pytest.param("kimi_linear", 3, "joined", {"causal_conv1d", "gated_delta_rule"}, marks=pytest.mark.slow),
        pytest.param("jamba", 0, "joined", {"causal_conv1d", "selective_scan"}, marks=pytest.mark.slow),
        pytest.param("jamba", 3, "joined", {"causal_conv1d", "selective_scan"}, marks=pytest.mark.slow),
    ],
)
def test_hybrids_are_one_plugin_layer_an_operator(
    family: str, speculative_tokens: int, mixers: str, operators: set[str], artifacts: ArtifactCache
) -> None:
    options = replace(AMPERE, plugins="on", plugin_mixers=mixers, speculative_tokens=speculative_tokens)
    record = build_engine(hybrid(artifacts, family).folder, replace(options, overwrite=True))
    assert record.speculative_tokens == speculative_tokens
    assert record.plugins.ops == dict.fromkeys([*operators, "reshape_and_cache", "paged_attention"], 1)
    assert record.plugins.version == ("3" if speculative_tokens else "2") and record.plugins.aliased
    assert record.layers["PLUGIN_V3"] == len(operators) + 2
    pools = {b["name"]: b["replaced_by"] for b in record.bindings if "replaced_by" in b}
    assert {b["aliases"]: b["name"] for b in record.bindings if "aliases" in b} == pools
    assert set(pools) == {"kv_pool_0", "conv_state_0", "recurrent_state_0"}


def test_slots_are_never_copied(artifacts: ArtifactCache) -> None:
    exported = artifacts.get("mamba2", "bfloat16", {"num_hidden_layers": 1, "state_size": 16}, layout="paged")
    options = replace(AMPERE, plugins="on", plugin_states="separate", overwrite=True)
    with pytest.raises(SettingError, match=r"expected `plugin_states='aliased'`, found separate: causal_conv1d"):
        build_engine(exported.folder, options)


def test_profiles_hold_every_row_at_its_longest(paged: Exported) -> None:
    prefill, decode = engine_profiles(paged.config, read_preset("rtx-ampere"), Limits(3, 96), cached=3)
    heads = paged.config.bindings.input("kv_pool_0").shape[3:]
    assert [p.name for p in (prefill, decode)] == ["prefill", "decode"]
    # A row has a block more while it copies one, and a prefix cache holds as many sequences again.
    assert prefill.shapes["kv_pool_0"][1:] == [[2, 3 * 7, 16, *heads], [2, 3 * 7 + 3 * 6, 16, *heads]]
    assert prefill.shapes["block_table"][2] == [3, 96 // 16]
    assert decode.shapes["input_ids"][2] == decode.shapes["seq_lens"][2] == [3]
    assert decode.shapes["query_start_loc"] == [[2], *([n[0] + 1] for n in decode.shapes["seq_lens"][1:])]
    assert prefill.shapes["input_ids"][2][0] > 96


@pytest.fixture(scope="module")
def e4m3(artifacts: ArtifactCache) -> Exported:
    sizes = {"num_hidden_layers": 1, "head_dim": 64}
    return artifacts.get("llama", "bfloat16", sizes, layout="paged", kv_dtype="fp8_e4m3")


@pytest.mark.parametrize("capability", sample(("8.6", "12.0"), on_push=("8.6",)))
def test_keys_and_values_of_e4m3_are_bytes_of_the_plugins(e4m3: Exported, capability: str) -> None:
    """Also on a GPU without e4m3, where the kernels convert in software."""
    options = replace(AMPERE, plugins="on", compute_capabilities=(capability,), overwrite=True)
    record = build_engine(e4m3.folder, options)
    assert record.plugins.ops == {"reshape_and_cache_fp8": 1, "paged_attention_fp8": 1}
    pools = {b["name"]: b for b in record.bindings if "kv_" in b["name"]}
    assert {name: b["dtype"] for name, b in pools.items()} == {
        "kv_pool_0": "int8",
        "kv_scales_0": "float32",
        "present_kv_pool_0": "int8",
        "present_kv_scales_0": "float32",
    }
    assert pools["present_kv_pool_0"]["aliases"] == "kv_pool_0"
    assert pools["present_kv_scales_0"]["aliases"] == "kv_scales_0"


def test_native_layers_take_no_e4m3(e4m3: Exported) -> None:
    with pytest.raises(EngineError, match=r"found native layers \(plugins are off\): export without `kv_dtype`"):
        build_engine(e4m3.folder, replace(AMPERE, plugins="off", overwrite=True))
