"""The trainer as a person runs it: two steps on a tiny text."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from demo_training.errors import TrainingInputError
from demo_training.families import FAMILIES, SpecialTokenIds
from demo_training.progress import ProgressFile
from demo_training.training import TrainingPlan, train
from train_demo_checkpoint import main
from transformers import AutoModelForCausalLM, AutoTokenizer

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
TINY_QWEN = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "layer_types": ["linear_attention", "full_attention"],
    "intermediate_size": 48,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
}


def run_trainer(folder: Path) -> int:
    """The trainer's exit code."""
    text = " ".join(f"The ship number {n} sailed over the sea to the king." for n in range(80))
    (folder / "sea.txt").write_text(text, encoding="utf-8")
    (folder / "unseen.txt").write_text(text[:1500].replace("ship", "whale"), encoding="utf-8")
    arguments = ["--family", "nemotron_h", "--text", str(folder / "sea.txt"), "--held-out", str(folder / "unseen.txt")]
    arguments += ["--out", str(folder / "out"), "--steps", "2", "--seed", "7", "--vocab-size", "300"]
    arguments += ["--batch-size", "2", "--seq-len", "32", "--window", "32", "--config-json", json.dumps(TINY_CONFIG)]
    return main(arguments)


def test_two_steps_give_a_checkpoint_that_transformers_loads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_trainer(tmp_path) == 0
    report = json.loads(capsys.readouterr().out)
    assert report == json.loads((tmp_path / "out" / "training_report.json").read_text(encoding="utf-8"))
    assert report["training"]["tokens"] == 2 * 2 * 32
    assert math.log(150) < report["training"]["final_train_loss"] < math.log(600)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert model.config.hybrid_override_pattern == "M*-"
    assert sum(parameter.numel() for parameter in model.parameters()) == report["parameters"]
    assert model(**tokenizer("The ship", return_tensors="pt")).logits.isfinite().all()


def test_an_existing_out_folder_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("keep", encoding="utf-8")
    assert run_trainer(tmp_path) == 2
    assert "expected --out to be a new folder" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["mine.txt"]


def tiny_qwen3_next() -> Any:
    family = FAMILIES["qwen3_next"]
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(family.config_from_tokens(SpecialTokenIds(50, 0, 1, 2), **TINY_QWEN))
    family.initialise(model)
    return model


def rows_until(steps: int) -> Iterator[np.ndarray]:
    """Batches of random tokens; the run is interrupted after ``steps`` of them."""
    rng = np.random.default_rng(0)
    for _ in range(steps):
        yield rng.integers(0, 50, (2, 17))
    raise KeyboardInterrupt


def test_time_steps_begin_between_a_thousandth_and_a_tenth() -> None:
    parameters = dict(tiny_qwen3_next().named_parameters())
    (dt_bias,) = (value for name, value in parameters.items() if name.endswith("dt_bias"))
    torch.testing.assert_close(torch.nn.functional.softplus(dt_bias), torch.tensor([1e-3, 1e-1]))


def test_an_interrupted_run_resumes_where_it_stopped(tmp_path: Path) -> None:
    """The same losses and weights as those of a run without an interruption."""
    held_out, plan = np.arange(34).reshape(2, 17) % 50, TrainingPlan(4, learning_rate=1e-2, report_every=2)
    whole = tiny_qwen3_next()
    expected = train(whole, rows_until(5), held_out, plan)
    progress = ProgressFile(tmp_path / "run.pt", {"seed": 0}, every=1)
    with pytest.raises(KeyboardInterrupt):
        train(tiny_qwen3_next(), rows_until(3), held_out, plan, progress)
    fresh = tiny_qwen3_next()
    found = train(fresh, rows_until(5), held_out, plan, progress)
    assert (found.tokens, found.final_train_loss) == (expected.tokens, pytest.approx(expected.final_train_loss))
    for name, value in whole.state_dict().items():
        torch.testing.assert_close(fresh.state_dict()[name], value, msg=name)
    assert [path.name for path in tmp_path.iterdir()] == ["run.pt"]


def test_the_progress_of_another_run_is_refused(tmp_path: Path) -> None:
    held_out, plan = np.arange(34).reshape(2, 17) % 50, TrainingPlan(1)
    train(tiny_qwen3_next(), rows_until(2), held_out, plan, ProgressFile(tmp_path / "run.pt", {"seed": 0}, every=1))
    with pytest.raises(TrainingInputError, match="the same seed, found 0"):
        train(tiny_qwen3_next(), rows_until(2), held_out, plan, ProgressFile(tmp_path / "run.pt", {"seed": 1}))
