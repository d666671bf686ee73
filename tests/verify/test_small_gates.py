"""Gates whose sigmoid is small: what is divided by their sum, or written by them alone, has all of their error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from hybridge.exporter.export import export_checkpoint
from hybridge.exporter.options import ExportOptions
from hybridge.runtime.llm import LLM
from hybridge.runtime.sampling import SamplingParams
from hybridge.verification.options import VerifyOptions
from hybridge.verification.verifier import verify
from tests.support.checkpoint_edits import edit_tensors
from tests.support.tiny_models import EXPERTS, save_tiny_model

# Relative L2 norm, float32 against float32.
OPTIONS = VerifyOptions(prompt_lengths=(7,), decode_steps=2, tolerance=1e-5)
PROMPT, NEW = [5, 11, 17, 23, 42], 12


def constant_channel(tensors: dict[str, Any], gate: str, rows: slice | list[int], logit: float) -> None:
    """Let ``rows`` of the matrix ``gate`` give about ``logit`` for every token: channel 0 of every embedding is 2."""
    embedding = next(value for name, value in tensors.items() if "embed" in name)
    embedding[:, 0] = 2.0
    share = (embedding.shape[1] / embedding.square().sum(1)).sqrt().mean()  # of channel 0 once it is normed
    tensors[gate][rows, 0] = logit / float(share)


def artifact(checkpoint: Path) -> Path:
    folder = checkpoint.parent / "artifact"
    export_checkpoint(checkpoint, folder, ExportOptions(max_seq_len=64))
    return folder


@pytest.mark.parametrize("logit", [-20.0, *(pytest.param(x, marks=pytest.mark.slow) for x in (-12.0, -16.0))])
def test_experts_with_small_scores(tmp_path: Path, logit: float) -> None:
    """norm_topk_prob divides the scores by their sum."""
    checkpoint = save_tiny_model(
        tmp_path / "checkpoint",
        "nemotron_h",
        **{**EXPERTS["nemotron_h"], "hybrid_override_pattern": "ME*", "norm_topk_prob": True},
    )

    def edit(tensors: dict[str, Any]) -> None:
        tensors["backbone.layers.1.norm.weight"][0] = 1.0
        constant_channel(tensors, "backbone.layers.1.mixer.gate.weight", slice(None), logit)

    folder = artifact(edit_tensors(checkpoint, edit))
    report = verify(checkpoint, folder, OPTIONS)
    assert report.passed, report.verdict()
    model = transformers.AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()
    expected = model.generate(torch.tensor([PROMPT]), max_new_tokens=NEW, do_sample=False, eos_token_id=None)
    with LLM(folder, "onnxruntime", threads=1) as llm:
        answer = llm.generate(PROMPT, max_new_tokens=NEW, sampling=SamplingParams(ignore_eos=True))
    assert list(answer.token_ids) == expected[0, len(PROMPT) :].tolist()


@pytest.mark.parametrize("logit", [-15.0, pytest.param(-9.0, marks=pytest.mark.slow)])
def test_a_delta_rule_that_writes_little(tmp_path: Path, logit: float) -> None:
    """beta is a sigmoid, and all that the state holds is multiplied by it."""
    layers = ["linear_attention", "full_attention"]
    checkpoint = save_tiny_model(tmp_path / "checkpoint", "qwen3_next", num_hidden_layers=2, layer_types=layers)

    def edit(tensors: dict[str, Any]) -> None:
        tensors["model.layers.0.input_layernorm.weight"][0] = 0.0  # stored as its distance from 1
        rows = [0, 1, 2, 6, 7, 8]  # of each key head: b of its three value heads, then their a
        constant_channel(tensors, "model.layers.0.linear_attn.in_proj_ba.weight", rows, logit)

    report = verify(checkpoint, artifact(edit_tensors(checkpoint, edit)), OPTIONS)
    assert report.passed, report.verdict()
    assert [c for c in report.comparisons if c.item == "recurrent_state"]
