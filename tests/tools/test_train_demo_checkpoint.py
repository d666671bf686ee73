"""The trainer as a person runs it: two steps on a tiny text."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

ROOT = Path(__file__).resolve().parents[2]
TINY_CONFIG = {
    "hidden_size": 32,
    "hybrid_override_pattern": "M*-",
    "intermediate_size": 48,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "mamba_num_heads": 4,
    "mamba_head_dim": 16,
    "ssm_state_size": 16,
    "chunk_size": 16,
}


def run_trainer(folder: Path, *extra: str) -> subprocess.CompletedProcess[str]:
    text = " ".join(f"The ship number {n} sailed over the sea to the king." for n in range(80))
    (folder / "sea.txt").write_text(text, encoding="utf-8")
    (folder / "unseen.txt").write_text(text[:1500].replace("ship", "whale"), encoding="utf-8")
    command = [sys.executable, str(ROOT / "tools" / "train_demo_checkpoint.py"), "--family", "nemotron_h"]
    command += ["--text", str(folder / "sea.txt"), "--held-out", str(folder / "unseen.txt")]
    command += ["--out", str(folder / "out"), "--steps", "2", "--seed", "7", "--vocab-size", "300"]
    command += ["--batch-size", "2", "--seq-len", "32", "--window", "32"]
    command += ["--config-json", json.dumps(TINY_CONFIG), *extra]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def test_two_steps_give_a_checkpoint_that_transformers_loads(tmp_path: Path) -> None:
    completed = run_trainer(tmp_path)
    assert completed.returncode == 0, completed.stderr
    report = json.loads(completed.stdout)
    assert report == json.loads((tmp_path / "out" / "training_report.json").read_text(encoding="utf-8"))
    assert report["training"]["tokens"] == 2 * 2 * 32
    assert math.log(150) < report["training"]["final_train_loss"] < math.log(600)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert model.config.hybrid_override_pattern == "M*-"
    assert sum(parameter.numel() for parameter in model.parameters()) == report["parameters"]
    assert model(**tokenizer("The ship", return_tensors="pt")).logits.isfinite().all()


def test_an_existing_out_folder_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("keep", encoding="utf-8")
    completed = run_trainer(tmp_path)
    assert completed.returncode == 2
    assert "expected --out to be a new folder" in completed.stderr
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["mine.txt"]
