"""The calls that a GPU's kernels get: planned for an H200 and computed by torch, they give what the file says."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch", reason="the torch engine needs torch")

from hybridge.artifact.dtypes import DType
from hybridge.runtime.engines.artifact_graph import read_model
from hybridge.runtime.engines.torch.fusion import Phase, fuse_graph
from hybridge.runtime.engines.torch.fusion.attention import fuse_attention
from hybridge.runtime.engines.torch.graph import clean_graph
from tests.runtime.torch.planned_kernels import PlannedKernels
from tests.runtime.torch.test_fusion import TOLERANCES, assert_same, run
from tests.support.artifacts import ArtifactCache, Exported
from tests.support.tiny_models import EXPERTS

# Sizes that the kernels run: multiples of 8, unlike those of the other tests.
NEMOTRON = {
    "hybrid_override_pattern": "M*-M",
    "hidden_size": 64,
    "head_dim": 16,
    "mamba_head_dim": 16,
    "ssm_state_size": 16,
}
BAMBA = {
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "attn_layer_indices": [1],
    "mamba_n_heads": 8,
    "mamba_d_state": 16,
}

QWEN = {
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_hidden_layers": 3,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
}
# Latents as wide as those of the published models.
LATENTS = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "layer_types": ["linear_attention", "full_attention"],
    "mlp_layer_types": ["dense", "dense"],
    "linear_head_dim": 32,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
}
QWEN_EXPERTS = {
    **QWEN,
    **EXPERTS["qwen3_next"],
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
}


def nemotron(artifacts: ArtifactCache, dtype: DType, **more: Any) -> Exported:
    return artifacts.get("nemotron_h", "bfloat16", {**NEMOTRON, **more}, dtype=dtype)


def counted(exported: Exported, phase: Phase, context: list[int], past: list[int]) -> PlannedKernels:
    """The kernel calls of one step, whose results have been compared with the file's."""
    config, kernels = exported.config, PlannedKernels()
    plain, fused = read_model(exported.folder), read_model(exported.folder)
    fuse_attention(plain.graph)
    clean_graph(plain.graph)
    fuse_graph(fused, phase, merge=True)
    expected = run(exported.folder, plain.graph, config, context, past)
    found = run(exported.folder, fused.graph, config, context, past, kernels)
    assert_same(found, expected, TOLERANCES[config.dtype.value])
    return kernels


def test_a_decode_step_is_few_launches(artifacts: ArtifactCache) -> None:
    kernels = counted(nemotron(artifacts, DType.BFLOAT16), Phase.DECODE, [1, 1], [3, 9])
    # M*-M: embeddings; two mixers of in_proj, scan, gated norm, out_proj; qkv, o, up, down and the head.
    assert kernels.calls == {"gather_rows": 1, "linear_decode": 9, "mamba2_conv_scan": 2, "rms_norm": 2}
    assert sum(kernels.launched.values()) == 14


@pytest.mark.parametrize("rows", [1, 8, 9, 16, 17])
def test_every_number_of_rows_is_right(rows: int, artifacts: ArtifactCache) -> None:
    exported = nemotron(artifacts, DType.BFLOAT16)
    calls = counted(exported, Phase.DECODE, [1] * rows, [row % 7 for row in range(rows)]).calls
    # Norms are part of products up to 8 rows, products are ours up to 16.
    assert calls["rms_norm"] == (2 if rows <= 8 else 7)
    assert calls["linear_decode"] == (9 if rows <= 16 else 0)


def test_float16_keeps_its_norms_apart(artifacts: ArtifactCache) -> None:
    calls = counted(nemotron(artifacts, DType.FLOAT16), Phase.DECODE, [1], [4]).calls
    assert calls == {"gather_rows": 1, "linear_decode": 9, "mamba2_conv_scan": 2, "rms_norm": 7}


def test_float32_products_are_torchs(artifacts: ArtifactCache) -> None:
    calls = counted(nemotron(artifacts, DType.FLOAT32), Phase.DECODE, [1], [4]).calls
    assert calls == {"gather_rows": 1, "mamba2_conv_scan": 2, "rms_norm": 7, "activate": 1}


@pytest.mark.parametrize(("context", "past"), [([15, 15], [0, 0]), ([9, 14], [3, 0])])
def test_prompts_run_the_operators_apart(context: list[int], past: list[int], artifacts: ArtifactCache) -> None:
    calls = counted(nemotron(artifacts, DType.BFLOAT16), Phase.PREFILL, context, past).calls
    # The head, the last out_proj and its gate have one row for each of the batch.
    del calls["gather_rows"]  # of embeddings
    assert calls == {"causal_conv1d": 2, "update_ssm_state": 2, "rms_norm": 6, "linear_decode": 3, "activate": 1}


def test_a_gated_mlp_is_one_product_and_a_gate_of_rope_layers(artifacts: ArtifactCache) -> None:
    exported = artifacts.get("bamba", "bfloat16", BAMBA)
    calls = counted(exported, Phase.DECODE, [1, 1], [3, 9]).calls
    # Each of two layers: gate and up, down; a mixer of two products; qkv and o; the head.
    assert calls["linear_decode"] == 2 * 2 + 2 + 2 + 1 and calls["mamba2_conv_scan"] == 1


def test_sizes_that_kernels_refuse_run_in_torch(artifacts: ArtifactCache) -> None:
    sizes = {**NEMOTRON, "hidden_size": 60, "mamba_head_dim": 10, "ssm_state_size": 9}
    exported = artifacts.get("nemotron_h", "bfloat16", sizes, dtype=DType.BFLOAT16, kernels="optional")
    calls = counted(exported, Phase.DECODE, [1, 1], [3, 9]).calls
    assert not calls["mamba2_conv_scan"] and calls["linear_decode"] < 9


def test_the_gated_delta_rule_gets_its_kernel(artifacts: ArtifactCache) -> None:
    exported = artifacts.get("qwen3_next", "bfloat16", QWEN)
    layers = exported.config.layer_types.count("gated_delta_net")
    assert layers and counted(exported, Phase.DECODE, [1, 1], [3, 9]).calls["gated_delta_rule"] == layers


def test_experts_get_their_kernels(artifacts: ArtifactCache) -> None:
    """Of each layer: the choice, the experts, and norms whose weights are float32; gated ones in the delta nets."""
    exported = artifacts.get("qwen3_next", "bfloat16", QWEN_EXPERTS)
    for rows in ([1], [1, 1, 0, 1]):
        calls = counted(exported, Phase.DECODE, rows, [3] * len(rows)).calls
        layers = len(exported.config.layer_types)
        assert calls["routed_experts"] == calls["top_k_softmax"] == layers
        nets = exported.config.layer_types.count("gated_delta_net")
        assert calls["rms_norm"] == 2 * layers + nets + 2 * (layers - nets) + 1


def test_many_routes_run_expert_by_expert(artifacts: ArtifactCache) -> None:
    exported = artifacts.get("qwen3_next", "bfloat16", QWEN_EXPERTS)
    calls = counted(exported, Phase.PREFILL, [9] * 8, [0] * 8).calls
    assert not calls["routed_experts"] and calls["top_k_softmax"] == len(exported.config.layer_types)
