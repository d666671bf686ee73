"""Artifacts of checkpoints with quantised experts in one tensor compute what the checkpoint means."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from hybridge.artifact.config import read_config
from hybridge.artifact.dtypes import DType
from hybridge.exporter.export import export_checkpoint
from hybridge.exporter.options import ExportOptions
from hybridge.verification.options import VerifyOptions
from hybridge.verification.verifier import verify
from tests.support import quantized_checkpoints as formats
from tests.support.quantized_checkpoints import Format
from tests.support.stacked_experts import mxfp4_blocks, save_stacked, stacked
from tests.support.tiny_models import EXPERTS

TOKENS = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True}
QWEN = {"hidden_size": 64, "moe_intermediate_size": 32}
QWEN_NEXT = {
    **EXPERTS["qwen3_next"],
    **QWEN,
    "num_hidden_layers": 2,
    "layer_types": ["linear_attention", "full_attention"],
    "shared_expert_intermediate_size": 32,
}
GRANITE = {
    **EXPERTS["granitemoehybrid"],
    "num_hidden_layers": 2,
    "layer_types": ["mamba", "attention"],
    "hidden_size": 96,
    "mamba_n_heads": 12,
    "shared_intermediate_size": 64,
    "intermediate_size": 32,
}
NEMOTRON = {
    **EXPERTS["nemotron_h"],
    "hybrid_override_pattern": "ME*",
    "hidden_size": 96,
    "moe_intermediate_size": 32,
}


@dataclass(frozen=True)
class Case:
    """A family with experts in a format, None: gpt-oss's; and the options of its export."""

    family: str
    form: Format | None
    overrides: dict[str, Any]
    options: dict[str, Any] = field(default_factory=dict)


CASES = {
    "fp8 blocks": Case("qwen3_next", formats.fp8_blocks(16, 32), QWEN_NEXT),
    "gpt-oss blocks": Case("gpt_oss", None, {"hidden_size": 64, "intermediate_size": 32}, {"layout": "paged"}),
    "w4, zero points": Case("granitemoehybrid", formats.pack_quantized(16, symmetric=False), GRANITE),
    "int8": Case("granitemoehybrid", formats.eight_bits("int", "channel"), GRANITE),
    "nvfp4": Case("nemotron_h", formats.modelopt("W4A16_NVFP4"), NEMOTRON, {"layout": "paged"}),
    "nvfp4, inputs": Case("nemotron_h", formats.modelopt("NVFP4"), NEMOTRON, {"layout": "paged"}),
    "modelopt fp8, inputs": Case("qwen3_moe", formats.modelopt("FP8"), QWEN, {"layout": "paged"}),
    "int8, inputs": Case("granitemoehybrid", formats.eight_bits("int", "channel", inputs=TOKENS), GRANITE),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_the_artifact_has_the_logits_of_the_checkpoint(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    pack = mxfp4_blocks if case.form is None else stacked(case.form)
    config = {"quant_method": "mxfp4"} if case.form is None else case.form.config
    quantized, meant = save_stacked(tmp_path, case.family, pack, config, **case.overrides)
    options = ExportOptions(max_batch_size=3, max_seq_len=96, dtype=DType.FLOAT32, **case.options)
    export_checkpoint(quantized, tmp_path / "out", options)
    record = read_config(tmp_path / "out").quantization
    assert record is not None and sum(record.formats.values()) in (2, 4)
    rounds = "inputs" in name or name == "fp8 blocks"
    assert sum(record.inputs.values()) == (sum(record.formats.values()) if rounds else 0)
    # The numbers that the checkpoint was made from know nothing of rounded inputs.
    for checkpoint, engine in ((quantized, "auto"), (quantized if rounds else meant, "torch")):
        compared = VerifyOptions(engine=engine, prompt_lengths=(5, 9), decode_steps=2, tolerance=1e-5)
        report = verify(checkpoint, tmp_path / "out", compared)
        assert report.passed, (engine, max(c.error for c in report.comparisons))
