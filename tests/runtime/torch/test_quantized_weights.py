"""Artifacts with quantised weights on a GPU: products read tiles. Planned as for an H200, computed by torch."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the torch engine needs torch")

from hybridge.artifact.config import read_config
from hybridge.artifact.dtypes import DType
from hybridge.exporter.export import export_checkpoint
from hybridge.exporter.options import ExportOptions
from hybridge.runtime.engines.artifact_graph import read_model
from hybridge.runtime.engines.torch.fusion import Phase, fuse_graph
from hybridge.runtime.engines.torch.fusion.attention import fuse_attention
from hybridge.runtime.engines.torch.fusion.linear import LINEAR, TILED_LINEAR
from hybridge.runtime.engines.torch.graph import clean_graph
from tests.runtime.torch.planned_kernels import PlannedKernels
from tests.runtime.torch.test_fusion import TOLERANCES, assert_same, run
from tests.support.effort import sample
from tests.support.quantized_checkpoints import Format, eight_bits, float4, pack_quantized, save_quantized
from tests.support.tiny_models import EXPERTS

SIZES = {
    "nemotron_h": {
        "hybrid_override_pattern": "M*-M",
        "hidden_size": 64,
        "head_dim": 16,
        "mamba_head_dim": 16,
        "ssm_state_size": 16,
        "intermediate_size": 96,
    },
    "llama": {"num_hidden_layers": 1, "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4},
}
FORMATS = {
    "int4": pack_quantized(32),
    "int4, zero points": pack_quantized(32, symmetric=False),
    "int4, a zero point a row": pack_quantized(None, symmetric=False),
    "nvfp4": float4("nvfp4-pack-quantized"),
    "fp8": eight_bits("float", "channel"),
    "int8": eight_bits("int", "channel"),
}


def exported(folder: Path, family: str, form: Format) -> Path:
    quantized, _ = save_quantized(folder, family, form, **SIZES[family])
    export_checkpoint(quantized, folder / "out", ExportOptions(max_batch_size=8, max_seq_len=96, dtype=DType.BFLOAT16))
    return folder / "out"


@pytest.mark.parametrize(("family", "name"), [("nemotron_h", "int4"), *(("llama", name) for name in FORMATS)])
def test_products_of_tiles_equal_those_of_the_files_weights(family: str, name: str, tmp_path: Path) -> None:
    folder = exported(tmp_path, family, FORMATS[name])
    config = read_config(folder)
    # Rows of x: few; more than a kernel takes, which are divided; as many as are multiplied with a matrix.
    for phase, batch, tokens in ((Phase.DECODE, 3, 1), (Phase.PREFILL, 8, 5), (Phase.PREFILL, 8, 9)):
        plain, fused, kernels = read_model(folder), read_model(folder), PlannedKernels()
        fuse_attention(plain.graph)
        clean_graph(plain.graph)
        fuse_graph(fused, phase, merge=True)
        kinds = Counter(node.op_type for node in fused.graph)
        # Of the two mixers' in_proj and out_proj, or none; qkv, o, up and down, or gate with up and down; the head.
        products = {"nemotron_h": 9, "llama": 5}[family]
        assert kinds[TILED_LINEAR] + kinds[LINEAR] == products and kinds[TILED_LINEAR] >= products - 1
        assert not kinds["DequantizeLinear"]
        steps = [tokens] * batch, [0 if tokens > 1 else row for row in range(batch)]
        found = run(folder, fused.graph, config, *steps, kernels)
        expected = run(folder, plain.graph, config, *steps)
        assert_same(found, expected, TOLERANCES["bfloat16"])
        assert bool(kernels.calls["unpack_tiles"]) is (batch * tokens > 64)


TOKENS = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True}
EXPERT_FORMS = {
    "int4": (pack_quantized(16, symmetric=False), 1),
    "fp8": (eight_bits("float", "channel"), 1),
    "int8, rounded inputs": (eight_bits("int", "channel", inputs=TOKENS), 2),
}


@pytest.mark.parametrize("name", sample(EXPERT_FORMS, on_push=("int4", "int8, rounded inputs")))
def test_experts_read_tiles(name: str, tmp_path: Path) -> None:
    """With as many experts as a token has, so that rounding does not decide which they are."""
    experts = {**EXPERTS["qwen3_next"], "num_experts": 2, "moe_intermediate_size": 32}
    sizes = {**experts, "shared_expert_intermediate_size": 32, "hidden_size": 64, "num_hidden_layers": 2}
    form, launches = EXPERT_FORMS[name]
    quantized, _ = save_quantized(tmp_path, "qwen3_next", form, **sizes)
    options = ExportOptions(max_batch_size=8, max_seq_len=96, dtype=DType.BFLOAT16)
    export_checkpoint(quantized, tmp_path / "out", options)
    config = read_config(tmp_path / "out")
    # 6 routes, which the kernels take, and 144, which they do not.
    for phase, batch, tokens in ((Phase.DECODE, 3, 1), (Phase.PREFILL, 8, 9)):
        plain, fused, kernels = read_model(tmp_path / "out"), read_model(tmp_path / "out"), PlannedKernels()
        fuse_graph(fused, phase, merge=True)
        kinds = Counter(node.op_type for node in fused.graph)
        assert kinds["TiledExperts"] == 2 and not kinds["routed_experts"] and not kinds["rounded_experts"]
        steps = [tokens] * batch, [0 if tokens > 1 else row for row in range(batch)]
        found = run(tmp_path / "out", fused.graph, config, *steps, kernels)
        wanted = run(tmp_path / "out", plain.graph, config, *steps)
        assert_same(found, wanted, TOLERANCES["bfloat16"])
        assert kernels.calls["tiled_experts"] == (2 * launches if batch * tokens == 3 else 0)
