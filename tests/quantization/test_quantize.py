"""Quantised checkpoints, read by another reader and by transformers; what is left alone, and what is refused."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import hybridge
from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import CheckpointError, EngineError, OutputError, SettingError, UnsupportedError
from hybridge.artifact.safetensors_file import TensorSlot
from hybridge.exporter.checkpoint import open_checkpoint
from hybridge.exporter.checkpoint.quantized import targets
from hybridge.quantization import matrix
from hybridge.quantization.config import quantization_config
from hybridge.quantization.options import QuantizeOptions
from hybridge.quantization.roles import roles_of
from hybridge.quantization.schemes import IntegerScheme
from tests.quantization.dequantized import dequantized, matches, stored_tensors
from tests.runtime.text.tokenizer_files import SENTENCES, byte_level_tokenizer
from tests.support.checkpoint_edits import edit_config, edit_tensors
from tests.support.effort import sample
from tests.support.tiny_models import BASE_CONFIGS, EXPERTS, LIKE_LLAMA, save_tiny_model

LEFT = (
    "conv1d",
    ".gate.down_proj.",
    ".gate.router_mlp.",
    ".a_proj.",
    ".b_proj.",
    ".f_proj.",
    ".x_proj.",
    ".dt_proj.",
    ".f_a_proj.",
    ".f_b_proj.",
    ".kv_b_proj.",
    "A_log",
    ".D",
    "dt_bias",
    "norm",
    "in_proj_a.",
    "in_proj_b.",
    "in_proj_ba.",
    "gate.weight",
    "router",
)


WITH_EXPERTS = ("nemotron_h experts", "granitemoehybrid experts")
# Numbers of columns that every group size divides.
WIDE = {"hidden_size": 128, "intermediate_size": 256, "head_dim": 64, "tie_word_embeddings": False}


def relative(one: torch.Tensor, two: torch.Tensor) -> float:
    return float((one.float() - two.float()).norm() / two.float().norm())


@pytest.mark.parametrize(
    "family", sample([*BASE_CONFIGS, *WITH_EXPERTS], on_push={*BASE_CONFIGS, *WITH_EXPERTS} - LIKE_LLAMA)
)
def test_every_family(tmp_path: Path, family: str) -> None:
    model_type = family.split()[0]
    extra = EXPERTS[model_type] if "experts" in family else {}
    checkpoint = save_tiny_model(tmp_path / "checkpoint", model_type, dtype="bfloat16", **extra)
    report = hybridge.quantize(checkpoint, tmp_path / "out")
    before, after = stored_tensors(checkpoint), dequantized(tmp_path / "out")
    assert before.keys() == after.keys() == open_checkpoint(tmp_path / "out").tensors.keys()
    quantised = {each.module for each in report.matrices}
    for name, value in before.items():
        if name.removesuffix(".weight") in quantised:
            bits8 = "lm_head" in name
            assert relative(after[name], value) < (0.01 if bits8 else 0.12)
        else:
            assert torch.equal(after[name], value)
            assert any(part in name for part in (*LEFT, "embed", "bias")) or value.ndim != 2 or name == "lm_head.weight"
    assert len(quantised) >= 3
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    modules = {n.removesuffix(".weight") for n in before} | {"lm_head", "model.layers.0.mlp.experts.0.up_proj"}
    for target in config["quantization_config"]["ignore"]:
        assert any(matches(name, [target]) for name in modules), target
    assert {k: v for k, v in config.items() if k != "quantization_config"} == json.loads(
        (checkpoint / "config.json").read_text()
    )


@pytest.mark.parametrize("power", [-90, 90])
def test_the_report_has_errors_of_weights_whose_squares_leave_float32(tmp_path: Path, power: int) -> None:
    checkpoint = save_tiny_model(tmp_path / "checkpoint", "llama")
    usual = hybridge.quantize(checkpoint, tmp_path / "usual", method="rtn")

    def scale(tensors: dict[str, torch.Tensor]) -> None:
        for each in usual.matrices:
            tensors[f"{each.module}.weight"] *= 2.0**power

    edit_tensors(checkpoint, scale)
    found = hybridge.quantize(checkpoint, tmp_path / "scaled", method="rtn")
    assert [each.error for each in found.matrices] == [each.error for each in usual.matrices]


@pytest.mark.parametrize(
    ("options", "bound"),
    [
        ({}, 0.1),
        ({"method": "rtn"}, 0.11),
        ({"zero_points": True}, 0.09),
        ({"format": "int8"}, 0.008),
        ({"format": "fp8"}, 0.03),
        ({"format": "nvfp4"}, 0.1),
        ({"format": "mxfp4"}, 0.14),
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_errors_that_the_report_has(tmp_path: Path, options: dict[str, Any], bound: float, dtype: str) -> None:
    checkpoint = save_tiny_model(tmp_path / "checkpoint", "qwen3", dtype=dtype, **WIDE)
    report = hybridge.quantize(checkpoint, tmp_path / "out", **options)
    before, after = stored_tensors(checkpoint), dequantized(tmp_path / "out")
    for each in report.matrices:
        assert each.error == pytest.approx(
            relative(after[f"{each.module}.weight"], before[f"{each.module}.weight"]), rel=1e-3
        )
        assert each.error < bound
    assert report.weight_bytes == sum(t.numel() * t.element_size() for t in stored_tensors(tmp_path / "out").values())
    assert json.loads((tmp_path / "out" / "hybridge_quantization.json").read_text()) == json.loads(
        json.dumps(report.to_json())
    )


def test_zero_points_in_blocks_of_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Words of zero points span eight rows. The last block is shorter; one matrix has a scale per row."""
    sizes = WIDE | {"intermediate_size": 250}
    checkpoint = save_tiny_model(tmp_path / "checkpoint", "qwen3", dtype="bfloat16", num_hidden_layers=1, **sizes)
    hybridge.quantize(checkpoint, tmp_path / "whole", zero_points=True)
    monkeypatch.setattr(matrix, "BLOCK", 1)
    report = hybridge.quantize(checkpoint, tmp_path / "out", zero_points=True)
    before, after, other = stored_tensors(checkpoint), dequantized(tmp_path / "out"), dequantized(tmp_path / "whole")
    for each in report.matrices:
        name = f"{each.module}.weight"
        assert relative(after[name], before[name]) == pytest.approx(each.error, rel=1e-3) and each.error < 0.13
        assert torch.equal(after[name], other[name])
    named = {each.module.rpartition(".")[2]: each.scheme for each in report.matrices}
    assert named["up_proj"] == "int4, groups of 32, zero points"
    assert named["down_proj"] == "int4, a scale per row, zero points" and named["lm_head"] == "int8, groups of 128"


@pytest.mark.parametrize(
    ("form", "columns", "schemes"),
    [
        ("nvfp4", (48, 75), {"nvfp4, groups of 16", "fp8, a scale per row"}),
        ("mxfp4", (64, 48), {"mxfp4, groups of 32", "fp8, a scale per row"}),
    ],
)
def test_columns_that_four_bit_floats_do_not_divide(
    tmp_path: Path, form: str, columns: tuple[int, int], schemes: set[str]
) -> None:
    sizes = {"hidden_size": columns[0], "intermediate_size": columns[1], "head_dim": 16, "num_attention_heads": 4}
    checkpoint = save_tiny_model(tmp_path / "checkpoint", "llama", **sizes)
    report = hybridge.quantize(checkpoint, tmp_path / "out", format=form)
    assert {each.scheme for each in report.matrices} == schemes and len(report.notes) == 1
    config = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]
    assert config["format"] == "mixed-precision"
    before, after = stored_tensors(checkpoint), dequantized(tmp_path / "out")
    assert all(relative(after[name], value) < 0.14 for name, value in before.items())
    assert {relative(after[n], v) for n, v in before.items() if "norm" in n} == {0.0}


def test_matrices_that_engines_join_share_the_second_scale(tmp_path: Path) -> None:
    checkpoint = save_tiny_model(tmp_path / "checkpoint", "qwen3", **WIDE)
    hybridge.quantize(checkpoint, tmp_path / "out", format="nvfp4")
    found = {n: float(v) for n, v in stored_tensors(tmp_path / "out").items() if n.endswith("global_scale")}
    layer = {n.split(".")[-2]: value for n, value in found.items() if n.startswith("model.layers.1.")}
    assert layer["q_proj"] == layer["k_proj"] == layer["v_proj"] != layer["o_proj"]
    assert layer["gate_proj"] == layer["up_proj"] != layer["down_proj"]


@pytest.mark.parametrize("options", sample([{}, {"format": "nvfp4"}, {"format": "fp8"}], on_push=[{"format": "nvfp4"}]))
def test_calibration_brings_the_predictions_closer(tmp_path: Path, options: dict[str, Any]) -> None:
    sizes = {**WIDE, "vocab_size": 410}
    checkpoint = byte_level_tokenizer(save_tiny_model(tmp_path / "checkpoint", "qwen3", **sizes))
    text = tmp_path / "text.txt"
    text.write_text(" ".join(SENTENCES) * 4, encoding="utf-8")
    hybridge.quantize(checkpoint, tmp_path / "mse", **options)
    report = hybridge.quantize(checkpoint, tmp_path / "gptq", method="gptq", text=text, **options)
    found = [hybridge.evaluate(checkpoint, tmp_path / name, text).mean_kl_divergence for name in ("mse", "gptq")]
    assert 0 < found[1] < 0.9 * found[0] and len(report.matrices) == 3 * 7 + 1


@pytest.mark.parametrize(
    ("family", "options"),
    sample(
        [("qwen3_next", {}), ("nemotron_h", {"format": "nvfp4"}), ("qwen3", {})],
        on_push=[("qwen3_next", {})],
    ),
)
def test_scaled_inputs_bring_the_predictions_closer(tmp_path: Path, family: str, options: dict[str, Any]) -> None:
    """Where some features are much larger than others, whose weights are as large."""
    sizes = {**WIDE, "vocab_size": 410, "num_hidden_layers": 2}
    checkpoint = byte_level_tokenizer(save_tiny_model(tmp_path / "checkpoint", family, dtype="bfloat16", **sizes))

    def enlarge(tensors: dict[str, torch.Tensor]) -> None:
        for name, value in tensors.items():
            if name.endswith(("layernorm.weight", ".norm.weight")):
                value[::17] = 12

    edit_tensors(checkpoint, enlarge)
    text = tmp_path / "text.txt"
    text.write_text(" ".join(SENTENCES) * 4, encoding="utf-8")
    changed = {}
    for method in ("mse", "awq"):
        given = {"text": text} if method == "awq" or "bits" in options else {}
        hybridge.quantize(checkpoint, tmp_path / method, method=method, **given, **options)
        found = dequantized(tmp_path / method)
        changed[method] = {n for n, v in stored_tensors(checkpoint).items() if not torch.equal(found[n], v)}
    divergences = [hybridge.evaluate(checkpoint, tmp_path / name, text).mean_kl_divergence for name in ("mse", "awq")]
    assert 0 < divergences[1] < 0.9 * divergences[0]
    assert any("norm" in name for name in changed["awq"] - changed["mse"])


@pytest.mark.slow
@pytest.mark.parametrize("method", ["awq", "gptq"])
@pytest.mark.parametrize(
    ("value", "message"), [(0.0, "q_proj: expected inputs over the text, found only"), (1e30, "expected finite inputs")]
)
def test_inputs_that_no_calibration_can_use(tmp_path: Path, method: str, value: float, message: str) -> None:
    checkpoint = save_tiny_model(tmp_path / "checkpoint", "llama", vocab_size=410, dtype="float32")
    byte_level_tokenizer(checkpoint)
    edit_tensors(checkpoint, lambda tensors: tensors["model.layers.1.input_layernorm.weight"].fill_(value))
    text = tmp_path / "text.txt"
    text.write_text(" ".join(SENTENCES) * 4, encoding="utf-8")
    with pytest.raises((CheckpointError, EngineError), match=message):
        hybridge.quantize(checkpoint, tmp_path / "out", method=method, text=text)
    if value:
        with pytest.raises(CheckpointError, match="expected finite predictions"):
            hybridge.quantize(checkpoint, tmp_path / "out", method=method)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint", "text.txt"]


def test_group_sizes_that_do_not_divide(tmp_path: Path) -> None:
    sizes = {"hidden_size": 48, "intermediate_size": 75, "tie_word_embeddings": False}
    checkpoint = save_tiny_model(tmp_path / "checkpoint", "llama", **sizes)
    report = hybridge.quantize(checkpoint, tmp_path / "out", group_size=64)
    schemes = {each.module.rsplit(".", 1)[-1]: each.scheme for each in report.matrices}
    assert schemes["up_proj"] == "int4, groups of 16" and schemes["down_proj"] == "int8, a scale per row"
    assert schemes["lm_head"] == "int8, groups of 16"
    assert len([n for n in report.notes if "group size does not divide" in n]) == 1
    before, after = stored_tensors(checkpoint), dequantized(tmp_path / "out")
    name = "model.layers.0.mlp.down_proj.weight"
    assert after[name].shape == (48, 75) and relative(after[name], before[name]) < 0.02


@pytest.mark.parametrize("tied", [True, False])
def test_a_head_stays_where_it_is_tied_or_kept(tied: bool, tmp_path: Path) -> None:
    checkpoint = save_tiny_model(tmp_path / "checkpoint", "qwen3", tie_word_embeddings=tied)
    report = hybridge.quantize(checkpoint, tmp_path / "out", keep_head=not tied)
    config = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]
    assert "lm_head" in config["ignore"] and not any("lm_head" in each.module for each in report.matrices)


@pytest.mark.parametrize("tied", [True, False])
def test_a_head_of_the_common_scheme_is_a_target_by_name(tied: bool) -> None:
    """vLLM's modules of heads are not linear layers."""
    modules = ["model.layers.0.mlp.up_proj", *([] if tied else ["language_model.lm_head"])]
    scheme = IntegerScheme(8, 128)
    config = quantization_config(dict.fromkeys(modules, scheme), ["lm_head"] if tied else [], scheme)
    ((_, group),) = config["config_groups"].items()
    assert group["targets"] == ["Linear", *([] if tied else ["re:.*lm_head$"])]


def test_experts_in_one_tensor_are_ignored_by_name() -> None:
    """vLLM has modules of single experts, and takes each for a linear layer."""
    shapes = {"mlp.experts.gate_up_proj": (4, 64, 32), "mlp.shared_expert.up_proj.weight": (64, 32)}
    tensors = {
        (name := f"model.layers.0.{last}"): TensorSlot(name, DType.BFLOAT16, shape, Path("a"), 0, 2 * math.prod(shape))
        for last, shape in shapes.items()
    }
    roles = roles_of(tensors, QuantizeOptions(), tied=False)
    assert [*roles.schemes] == ["model.layers.0.mlp.shared_expert.up_proj"]
    assert not targets.matches("model.layers.0.mlp.shared_expert.up_proj", roles.ignored)
    assert targets.matches("model.layers.0.mlp.experts.0.down_proj", roles.ignored)


def test_several_shards(tmp_path: Path) -> None:
    checkpoint = save_tiny_model(tmp_path / "one", "llama")
    hybridge.quantize(checkpoint, tmp_path / "whole")
    tensors = load_file(checkpoint / "model.safetensors")
    (checkpoint / "model.safetensors").unlink()
    files = {name: f"model-{1 + index % 2:05}-of-00002.safetensors" for index, name in enumerate(tensors)}
    for file in set(files.values()):
        part = {name: value for name, value in tensors.items() if files[name] == file}
        save_file(part, checkpoint / file, {"format": "pt"})
    (checkpoint / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    hybridge.quantize(checkpoint, tmp_path / "out")
    one, two = stored_tensors(tmp_path / "whole"), stored_tensors(tmp_path / "out")
    assert one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    assert index["weight_map"].keys() == two.keys()
    assert index["metadata"]["total_size"] == sum(t.numel() * t.element_size() for t in two.values())


def test_refusals(tmp_path: Path) -> None:
    checkpoint = save_tiny_model(tmp_path / "checkpoint", "llama")
    out = tmp_path / "out"
    with pytest.raises(SettingError, match="group_size: expected 16, 32, 64, 128, found 48"):
        hybridge.quantize(checkpoint, out, group_size=48)
    with pytest.raises(SettingError, match="format: expected int4 with `zero_points`, found int8"):
        hybridge.quantize(checkpoint, out, format="int8", zero_points=True)
    with pytest.raises(SettingError, match="group_size: expected none for fp8, found 32"):
        hybridge.quantize(checkpoint, out, format="fp8", group_size=32)
    with pytest.raises(SettingError, match=r"text: expected none for the method mse without `bits`, found text\.txt"):
        hybridge.quantize(checkpoint, out, text="text.txt")
    with pytest.raises(SettingError, match=r"checkpoint: expected a tokenizer for the text, found no tokenizer.json"):
        hybridge.quantize(checkpoint, out, method="gptq", text=__file__)
    with pytest.raises(OutputError, match="is the checkpoint's own folder"):
        hybridge.quantize(checkpoint, checkpoint, overwrite=True)
    hybridge.quantize(checkpoint, out)
    with pytest.raises(OutputError, match="out: exists already: pass `overwrite=True`"):
        hybridge.quantize(checkpoint, out)
    hybridge.quantize(checkpoint, out, overwrite=True, format="int8")
    with pytest.raises(UnsupportedError, match="expected a checkpoint in full precision, found a quantised one"):
        hybridge.quantize(out, tmp_path / "twice")
    plain = save_tiny_model(tmp_path / "plain", "llama")
    with pytest.raises(OutputError, match="is not replaced"):
        hybridge.quantize(checkpoint, plain, overwrite=True)

    def damage(tensors: dict[str, torch.Tensor]) -> None:
        tensors["model.layers.1.mlp.up_proj.weight"][3, 5] = np.nan

    edit_tensors(checkpoint, damage)
    with pytest.raises(CheckpointError, match=r"up_proj.weight holds nan at index \[3, 5\]: expected finite weights"):
        hybridge.quantize(checkpoint, tmp_path / "damaged")
    for options in ({"method": "gptq"}, {"method": "awq"}, {"bits": 7.0}):
        with pytest.raises(
            CheckpointError, match=r"up_proj.weight holds nan at index \[3, 5\]: expected finite weights"
        ):
            hybridge.quantize(checkpoint, tmp_path / "damaged", **options)
    edit_tensors(checkpoint, lambda tensors: tensors["model.layers.1.mlp.up_proj.weight"].zero_())
    with pytest.raises(CheckpointError, match=r"up_proj.weight holds only zeros: expected weights for a calibration"):
        hybridge.quantize(checkpoint, tmp_path / "damaged", method="gptq")
    edit_config(plain, model_type="unheard_of")
    with pytest.raises(UnsupportedError, match="unheard_of"):
        hybridge.quantize(plain, tmp_path / "unknown")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint", "out", "plain"]
