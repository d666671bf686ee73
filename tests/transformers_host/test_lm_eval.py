"""lm-evaluation-harness scores an accelerated model as it scores the plain one, on a small local task."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from hybridge import accelerate
from tests.project.test_wheel import ROOT

CHECKPOINT = ROOT / "examples" / "checkpoints" / "tiny-nemotron-h"
TASK = """
task: local_choice
dataset_path: json
dataset_kwargs:
  data_files: {{test: {data}}}
output_type: multiple_choice
test_split: test
doc_to_text: "{{{{question}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: answer
metric_list:
  - {{metric: acc}}
  - {{metric: acc_norm}}
"""


def questions() -> list[dict[str, Any]]:
    """Sentences of the held-out text, each with its own next words and those of two others."""
    text = (ROOT / "examples" / "text" / "heldout.txt").read_text(encoding="utf-8").split()
    pieces = [(" ".join(text[i : i + 12]), " " + " ".join(text[i + 12 : i + 16])) for i in range(0, 16 * 12, 16)]
    ends = [end for _, end in pieces]
    return [
        {"question": start, "choices": [ends[i], ends[(i + 1) % 12], ends[(i + 5) % 12]], "answer": 0}
        for i, (start, _) in enumerate(pieces)
    ]


def test_same_scores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("lm_eval", "accelerate"):
        pytest.importorskip(
            package, reason="needs lm-evaluation-harness, 500 MB of packages: pip install 'lm-eval[hf]'"
        )
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    monkeypatch.setitem(os.environ, "HF_DATASETS_OFFLINE", "1")
    import torch
    import yaml
    from lm_eval import simple_evaluate
    from lm_eval.models.huggingface import HFLM
    from transformers import AutoModelForCausalLM

    data = tmp_path / "questions.jsonl"
    data.write_text("\n".join(json.dumps(question) for question in questions()), encoding="utf-8")
    task = yaml.safe_load(TASK.format(data=data))
    model = AutoModelForCausalLM.from_pretrained(CHECKPOINT, dtype=torch.float32).eval()
    for layer in model.model.layers:
        if hasattr(layer.mixer, "time_step_limit"):  # transformers bounds prompts by time_step_min instead
            layer.mixer.time_step_limit = (0.0, float("inf"))
    tokenizer = AutoTokenizer.from_pretrained(CHECKPOINT)

    def scores() -> dict[str, Any]:
        host = HFLM(pretrained=model, tokenizer=tokenizer, batch_size=4, device="cpu")
        found = simple_evaluate(model=host, tasks=[task], bootstrap_iters=0, log_samples=True)
        samples = [sample["filtered_resps"] for sample in found["samples"]["local_choice"]]
        return {"results": found["results"], "choices": samples}

    expected = scores()
    with accelerate(model, max_cache_len=128, cache_folder=tmp_path / "cache", threads=1):
        found = scores()
    assert found["results"] == expected["results"]
    for mine, theirs in zip(found["choices"], expected["choices"], strict=True):
        assert [a[0] for a in mine] == pytest.approx([b[0] for b in theirs], abs=1e-3)
