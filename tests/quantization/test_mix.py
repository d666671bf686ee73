"""A mix of schemes with a given number of bits."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hybridge
from hybridge.artifact.errors import SettingError
from hybridge.exporter.rounding.siblings import groups_of
from hybridge.quantization.budget import Choice, chosen
from hybridge.quantization.calibration import Calibration
from hybridge.quantization.run import QuantizeRun
from hybridge.quantization.work_folder import WorkFolder
from tests.runtime.text.tokenizer_files import SENTENCES, byte_level_tokenizer
from tests.support.checkpoint_edits import edit_tensors
from tests.support.tiny_models import save_tiny_model

SIZES = {"hidden_size": 128, "intermediate_size": 256, "head_dim": 64, "tie_word_embeddings": False}


def choices(rng: np.random.Generator) -> list[Choice]:
    sizes = np.sort(rng.choice(np.arange(1, 40), 4, replace=False))
    return [Choice(None, int(size), float(value)) for size, value in zip(sizes, rng.uniform(0, 9, 4), strict=True)]


@pytest.mark.parametrize("seed", range(8))
def test_no_choice_of_as_few_bytes_is_better(seed: int) -> None:
    """Compared with all choices of at most as many bytes, where a step uses up the budget exactly."""
    rng = np.random.default_rng(seed)
    options = {name: choices(rng) for name in "abcd"}
    least = sum(min(c.nbytes for c in each) for each in options.values())
    for budget in (least, least + 10, least + 25, least + 200):
        found = chosen(options, budget)
        taken, value = (sum(getattr(c, name) for c in found.values()) for name in ("nbytes", "divergence"))
        assert taken <= budget and all(found[name] in options[name] for name in options)
        every = [
            sum(c.divergence for c in each)
            for each in itertools.product(*options.values())
            if sum(c.nbytes for c in each) <= budget
        ]
        # The last steps may not fit: the loss is then less than one step's gain.
        gain = max(c.divergence for each in options.values() for c in each)
        assert value < min(every) + gain
        if budget in (least, least + 200):
            assert value == pytest.approx(min(every)) or budget == least


def test_groups_share_a_scheme() -> None:
    names = ["l.0.q_proj", "l.0.k_proj", "l.0.v_proj", "l.0.o_proj", "l.0.mlp.experts.0.up_proj"]
    names += ["l.0.mlp.experts.1.gate_proj", "l.0.mlp.experts.1.down_proj", "lm_head"]
    assert list(groups_of(names).values()) == [names[:3], [names[3]], names[4:6], [names[6]], ["lm_head"]]


def test_bits_are_kept_and_predictions_are_closer(tmp_path: Path) -> None:
    checkpoint = save_tiny_model(tmp_path / "checkpoint", "qwen3", vocab_size=410, dtype="bfloat16", **SIZES)
    byte_level_tokenizer(checkpoint)
    text = tmp_path / "text.txt"
    text.write_text(" ".join(SENTENCES) * 4, encoding="utf-8")
    plain = hybridge.quantize(checkpoint, tmp_path / "plain", method="rtn")
    weights, nbytes = (sum(getattr(m, name) for m in plain.matrices) for name in ("weights", "nbytes"))
    report = hybridge.quantize(checkpoint, tmp_path / "mix", bits=8 * nbytes / weights, text=text, method="rtn")
    assert sum(m.nbytes for m in report.matrices) <= nbytes
    found = [hybridge.evaluate(checkpoint, tmp_path / name, text).mean_kl_divergence for name in ("plain", "mix")]
    assert 0 < found[1] < found[0]
    assert sum(group.matrices for group in report.groups) == len(plain.matrices) == 3 * 7 + 1
    table = (tmp_path / "mix" / "hybridge_sensitivity.txt").read_text().splitlines()
    assert len(table) == 1 + len(report.groups) and all("int" in line for line in table[1:])
    config = json.loads((tmp_path / "mix" / "config.json").read_text())["quantization_config"]
    assert {group["format"] for group in config["config_groups"].values()} == {"pack-quantized"}


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"bits": 6.5}, {"method": "gptq"}])
def test_own_samples(tmp_path: Path, options: dict[str, Any]) -> None:
    checkpoint = save_tiny_model(tmp_path / "checkpoint", "nemotron_h", tie_word_embeddings=False)
    report = hybridge.quantize(checkpoint, tmp_path / "out", **options)
    again = hybridge.quantize(checkpoint, tmp_path / "again", **options)
    assert report.matrices == again.matrices and report.groups == again.groups


def test_bits_that_cannot_be_reached(tmp_path: Path) -> None:
    checkpoint = save_tiny_model(tmp_path / "checkpoint", "llama", tie_word_embeddings=False)
    with pytest.raises(SettingError, match=r"bits: expected 5\.\d\d or more for this model, found 4\.1"):
        hybridge.quantize(checkpoint, tmp_path / "out", bits=4.1)
    with pytest.raises(SettingError, match="bits: expected a number from 4 to 12, found nan"):
        hybridge.quantize(checkpoint, tmp_path / "out", bits=float("nan"))
    with pytest.raises(SettingError, match="format: expected int4 with `bits`, which mixes formats, found fp8"):
        hybridge.quantize(checkpoint, tmp_path / "out", bits=5, format="fp8")
    with pytest.raises(SettingError, match="group_size: expected none with `bits`, which mixes them, found 32"):
        hybridge.quantize(checkpoint, tmp_path / "out", bits=5, group_size=32)
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
@pytest.mark.parametrize(("awq", "mse"), [(1.0, 2.0), (2.0, 1.0), (1.0, 1.0)])
def test_scaled_inputs_are_written_only_if_predictions_are_closer(
    awq: float, mse: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = save_tiny_model(tmp_path / "checkpoint", "qwen3", vocab_size=410, dtype="bfloat16", **SIZES)
    byte_level_tokenizer(checkpoint)
    edit_tensors(checkpoint, lambda tensors: [t[::17].fill_(9) for n, t in tensors.items() if "layernorm" in n])
    text = tmp_path / "text.txt"
    text.write_text(" ".join(SENTENCES) * 4, encoding="utf-8")
    hybridge.quantize(checkpoint, tmp_path / "mse", method="mse", bits=5.5, text=text)
    measured: dict[str, float] = {}

    def divergence(run: QuantizeRun, calibration: Calibration, work: WorkFolder) -> float:
        measured[run.options.method] = real(run, calibration, work)
        return {"awq": awq, "mse": mse}[run.options.method]

    real = QuantizeRun._divergence
    monkeypatch.setattr(QuantizeRun, "_divergence", divergence)
    report = hybridge.quantize(checkpoint, tmp_path / "awq", method="awq", bits=5.5, text=text)
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("mse", "awq")]
    assert (weights[0] == weights[1]) == (awq >= mse)
    assert any("the weights are those of mse" in note for note in report.notes) == (awq >= mse)
    # Where features differ as much as here, scales help.
    assert 0 < measured["awq"] < measured["mse"] < 1
