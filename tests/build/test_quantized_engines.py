"""Engines of quantised artifacts that TensorRT-RTX builds without a GPU: their weights stay packed."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from hybridge.artifact.errors import EngineError
from hybridge.exporter.export import export_checkpoint
from hybridge.exporter.options import ExportOptions
from hybridge.trt_plugins.build.builder import build_engine, engine_folder
from hybridge.trt_plugins.build.options import BuildOptions
from tests.support import quantized_checkpoints as formats
from tests.support.effort import sample

pytest.importorskip("tensorrt_rtx", reason="needs the tensorrt-rtx package")
pytest.importorskip("transformers", reason="needs the export extra (transformers)")

# 10.7 million numbers in the matrices of one layer. Everything else in an engine takes 4 to 7 MB.
SIZES = {
    "num_hidden_layers": 1,
    "hidden_size": 1024,
    "intermediate_size": 2048,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "vocab_size": 128,
}
NUMBERS, REST = 10_747_904, 7_500_000
AMPERE, ADA, BLACKWELL = "rtx-ampere", "rtx-ada", "rtx-blackwell"
STATIC = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "tensor", "dynamic": False}
TOKENS = {**STATIC, "type": "int", "strategy": "token", "dynamic": True}


@dataclass(frozen=True)
class Case:
    """A format and the oldest target with its type. bits: limit per number in the engine, scales included."""

    form: formats.Format
    target: str
    bits: float
    layout: str = "dense"
    build: dict[str, Any] = field(default_factory=dict)


CASES = {
    "int4": Case(formats.pack_quantized(32), AMPERE, 5),
    "int4, zero points": Case(formats.pack_quantized(32, symmetric=False), AMPERE, 7),
    "int4, act-order, paged": Case(formats.gptq(32, ordered=True), AMPERE, 5.5, "paged"),
    "int8, rounded by token": Case(formats.eight_bits("int", "channel", inputs=TOKENS), AMPERE, 8.5),
    "fp8, rounded": Case(formats.eight_bits("float", "tensor", inputs=STATIC), ADA, 8.5),
    "fp8 blocks, paged": Case(formats.fp8_blocks(), ADA, 9, "paged"),
    "nvfp4": Case(formats.float4("nvfp4-pack-quantized"), BLACKWELL, 7),
    "mxfp4, paged": Case(formats.float4("mxfp4-pack-quantized"), BLACKWELL, 5.5, "paged"),
    "int4, plugins": Case(formats.pack_quantized(32), AMPERE, 5, "paged", {"plugins": "on"}),
    "nvfp4, plugins": Case(formats.float4("nvfp4-pack-quantized"), BLACKWELL, 7, "dense", {"plugins": "on"}),
    "int4, draft tokens": Case(
        formats.pack_quantized(32), AMPERE, 5, "paged", {"plugins": "on", "speculative_tokens": 3}
    ),
}


def exported(folder: Path, case: Case) -> Path:
    quantized, _ = formats.save_quantized(folder, "llama", case.form, **SIZES)
    export_checkpoint(quantized, folder / "out", ExportOptions(max_batch_size=2, max_seq_len=64, layout=case.layout))
    return folder / "out"


@pytest.mark.parametrize("name", sample(CASES, ("int4, zero points",)))
def test_weights_stay_packed(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    out = exported(tmp_path, case)
    options = BuildOptions(target=case.target, library="tensorrt_rtx", **{"plugins": "off", **case.build})
    build_engine(out, options)
    size = (engine_folder(out, case.target) / "model.engine").stat().st_size
    assert NUMBERS / 8 * 4 < size < REST + NUMBERS / 8 * case.bits < NUMBERS * 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "target", "kind"), [("fp8, rounded", AMPERE, "fp8"), ("nvfp4", ADA, "fp4"), ("nvfp4", AMPERE, "fp")]
)
def test_a_target_without_the_type_is_refused(name: str, target: str, kind: str, tmp_path: Path) -> None:
    out = exported(tmp_path, CASES[name])
    with pytest.raises(EngineError, match=f"HW-specific datatypes.*{kind}"):
        build_engine(out, BuildOptions(target=target, library="tensorrt_rtx", plugins="off"))
    assert not engine_folder(out, target).exists()
