"""Evaluations against float64 sums over the logits of transformers, for every layout and engine."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

import hybridge
from hybridge.artifact.errors import ArtifactError, CheckpointError, SettingError
from hybridge.evaluation import evaluator
from hybridge.evaluation.artifact_logits import ArtifactLogits
from hybridge.evaluation.checkpoint_logits import CheckpointLogits
from hybridge.evaluation.report import EvaluateReport
from tests.runtime.text.tokenizer_files import SENTENCES, byte_level_tokenizer
from tests.support.checkpoint_edits import copy_checkpoint, edit_tensors
from tests.support.effort import sample
from tests.support.tiny_models import BASE_CONFIGS, save_tiny_model

FAMILY = "granitemoehybrid"  # attention, Mamba2, scaled logits
WINDOW = 45


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A checkpoint with a tokenizer, and the same with other weights."""
    folder = tmp_path_factory.mktemp("evaluated")
    # One group: transformers 5.20, the last one for Python 3.10, normalises over all groups.
    checkpoint = byte_level_tokenizer(save_tiny_model(folder / "one", FAMILY, vocab_size=410, mamba_n_groups=1))
    other = copy_checkpoint(checkpoint, folder / "other")

    def shake(tensors: dict[str, torch.Tensor]) -> None:
        generator = torch.Generator().manual_seed(0)
        for name, value in tensors.items():
            if value.ndim == 2:
                tensors[name] = value * (1 + 0.2 * torch.randn(value.shape, generator=generator)).to(value.dtype)

    return checkpoint, edit_tensors(other, shake)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("\n".join((*SENTENCES[:2], *SENTENCES)), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def expected(pair: tuple[Path, Path], text: Path) -> dict[str, float]:
    """From transformers' logits, in float64."""
    from transformers import AutoTokenizer

    ids = AutoTokenizer.from_pretrained(pair[0])(text.read_text())["input_ids"]
    log_probabilities: list[list[np.ndarray]] = [[], []]
    targets = []
    for start in range(0, len(ids) - WINDOW + 1, WINDOW):
        window = [ids[0], *ids[start + 1 : start + WINDOW]]  # begins with BOS
        targets += window[WINDOW // 2 + 1 :]
        for folder, found in zip(pair, log_probabilities, strict=True):
            model = cast(Any, AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)).eval()
            with torch.no_grad():
                logits = model(torch.tensor([window])).logits[0, WINDOW // 2 : WINDOW - 1].double()
            found.append((logits - logits.logsumexp(1, keepdim=True)).numpy())
    one, two = (np.concatenate(parts) for parts in log_probabilities)
    rows = np.arange(len(targets))
    kl = (np.exp(one) * (one - two)).sum(1)
    return {
        "positions": len(targets),
        "reference": math.exp(-one[rows, targets].mean()),
        "other": math.exp(-two[rows, targets].mean()),
        "mean": kl.mean(),
        "last": np.quantile(kl, 0.999),
        "same": (one.argmax(1) == two.argmax(1)).mean(),
    }


def check(report: EvaluateReport, expected: dict[str, float]) -> None:
    assert report.positions == expected["positions"] > 2 * (WINDOW // 2 - 1)
    assert report.reference.perplexity == pytest.approx(expected["reference"], rel=1e-5)
    assert report.other.perplexity == pytest.approx(expected["other"], rel=1e-5)
    assert report.mean_kl_divergence == pytest.approx(expected["mean"], rel=1e-4)
    assert report.kl_divergence_999 == pytest.approx(expected["last"], rel=1e-4)
    assert report.same_top == expected["same"] < 1 and report.mean_kl_divergence > 0.01


def test_two_checkpoints(
    pair: tuple[Path, Path], text: Path, expected: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluator, "_BLOCK_BYTES", 4 * 410 * 5)  # blocks of 5 positions, the last one smaller
    report = hybridge.evaluate(*pair, text, window=WINDOW)
    check(report, expected)
    size = sum(path.stat().st_size for path in pair[0].glob("*.safetensors"))
    assert 0 < size - report.reference.weight_bytes < 16_384  # the header
    assert report.tokens == report.windows * WINDOW and "transformers" in report.other.computed_by


@pytest.mark.parametrize(
    ("options", "engine"),
    [
        ({}, "onnxruntime"),
        ({"all_logits": True}, "onnxruntime"),
        pytest.param({}, "torch", marks=pytest.mark.slow),
        pytest.param({"layout": "paged"}, "onnxruntime", marks=pytest.mark.slow),
        ({"layout": "paged"}, "torch"),
    ],
)
def test_an_artifact_has_the_predictions_of_its_checkpoint(
    pair: tuple[Path, Path],
    text: Path,
    expected: dict[str, float],
    tmp_path: Path,
    options: dict[str, Any],
    engine: str,
) -> None:
    hybridge.export(pair[1], tmp_path / "out", max_seq_len=WINDOW, kernels="optional", **options)
    report = hybridge.evaluate(pair[0], tmp_path / "out", text, window=WINDOW, engine=engine)
    check(report, expected)
    assert engine in report.other.computed_by and report.other.weight_bytes >= report.reference.weight_bytes
    with pytest.raises(SettingError, match=rf"window: expected at most {WINDOW} tokens .* found {WINDOW + 1}"):
        hybridge.evaluate(pair[0], tmp_path / "out", text, window=WINDOW + 1, engine=engine)


# On push families whose logits have other paths to the head; paged engines of all families run against transformers.
@pytest.mark.parametrize("family", sample([*BASE_CONFIGS, "no attention"], on_push=("llama", "no attention")))
def test_logits_of_every_family(tmp_path: Path, family: str) -> None:
    """Also those of hybrids without any attention layer, and of a step that the engine has to cut."""
    kinds = {"hybrid_override_pattern": "M-M"} if family == "no attention" else {}
    checkpoint = save_tiny_model(tmp_path / "checkpoint", "nemotron_h" if kinds else family, **kinds)
    hybridge.export(checkpoint, tmp_path / "out", max_seq_len=40, kernels="optional", layout="paged", mtp=False)
    tokens = np.random.default_rng(0).integers(0, 97, 40)
    sources = CheckpointLogits(checkpoint), ArtifactLogits(tmp_path / "out", "onnxruntime", 40)
    one, two = (np.concatenate([block.copy() for block in source.logits(tokens, 20, 7)]) for source in sources)
    assert one.shape == two.shape == (19, 97)
    assert np.linalg.norm(one - two) < 1e-4 * np.linalg.norm(one)
    again = np.concatenate([block.copy() for block in sources[1].logits(tokens, 20, 19)])
    assert np.linalg.norm(again - two) < 1e-5 * np.linalg.norm(one), "a second window starts from empty states"
    for source in sources:
        source.close()


def test_refusals(pair: tuple[Path, Path], text: Path, tmp_path: Path) -> None:
    wider = byte_level_tokenizer(save_tiny_model(tmp_path / "wider", FAMILY, vocab_size=411))
    with pytest.raises(SettingError, match=r"wider: expected a vocabulary of 410 tokens, .* found 411: give two"):
        hybridge.evaluate(pair[0], wider, text)
    small = byte_level_tokenizer(save_tiny_model(tmp_path / "small", FAMILY, vocab_size=50))
    with pytest.raises(ArtifactError, match=r"small: expected tokens below 50, .* found \d+ in the text"):
        hybridge.evaluate(small, small, text)
    with pytest.raises(CheckpointError, match=r"nowhere: expected a checkpoint folder, found nothing"):
        hybridge.evaluate(pair[0], tmp_path / "nowhere", text)
    (tmp_path / "latin").write_bytes("Größe".encode("latin-1"))
    with pytest.raises(SettingError, match=r"latin: expected UTF-8 text, found the byte 0xf6: give a text"):
        hybridge.evaluate(*pair, tmp_path / "latin")
    with pytest.raises(SettingError, match=r"expected the file .*absent.*, found none: give a text file"):
        hybridge.evaluate(*pair, tmp_path / "absent")
    with pytest.raises(SettingError, match="window: expected an integer of at least 2, found 1"):
        hybridge.evaluate(*pair, text, window=1)
