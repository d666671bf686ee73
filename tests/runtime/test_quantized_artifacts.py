"""Speculation, prefix cache, sessions, prediction heads and accelerated models over quantised weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from hybridge import accelerate
from hybridge.artifact.config import MTP_MODEL_FILE
from hybridge.artifact.dtypes import DType
from hybridge.artifact.onnx_file import read_onnx
from hybridge.exporter.export import export_checkpoint
from hybridge.exporter.options import ExportOptions
from hybridge.runtime.llm import LLM
from hybridge.runtime.sampling import SamplingParams
from hybridge.runtime.serving.settings import ServingSettings
from hybridge.runtime.speculation import SpeculationSettings
from tests.support.effort import sample
from tests.support.quantized_checkpoints import pack_quantized, save_quantized

HYBRID = {"num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"]}
PROMPT, NEW = [3, 1, 4, 1, 5, 9, 2, 6] * 4, 12
GREEDY = SamplingParams(ignore_eos=True)
ENGINES = ("onnxruntime", pytest.param("torch", marks=pytest.mark.slow))


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A checkpoint with zero points and a prediction head, and what it means in float32."""
    form = pack_quantized(24, symmetric=False)
    return save_quantized(tmp_path_factory.mktemp("checkpoints"), "qwen3_5_text", form, mtp=True, **HYBRID)


@pytest.fixture(scope="module")
def artifact(checkpoints: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("artifact") / "out"
    export_checkpoint(
        checkpoints[0], out, ExportOptions(max_batch_size=2, max_seq_len=96, dtype=DType.FLOAT32, layout="paged")
    )
    return out


@pytest.fixture(scope="module")
def expected(checkpoints: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> list[int]:
    """The greedy tokens of the float32 checkpoint."""
    out = tmp_path_factory.mktemp("plain") / "out"
    export_checkpoint(checkpoints[1], out, ExportOptions(max_batch_size=2, max_seq_len=96, dtype=DType.FLOAT32))
    with LLM(out, "onnxruntime", serving=ServingSettings(prefix_cache="off")) as llm:
        return list(llm.generate(PROMPT, GREEDY, NEW).token_ids)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("drafter", sample(("ngram", "mtp"), on_push=("mtp",)))
def test_speculation(engine: str, drafter: str, artifact: Path, expected: list[int]) -> None:
    speculation = SpeculationSettings(3, drafter, adaptive=False)
    with LLM(artifact, engine, serving=ServingSettings(prefix_cache="off", speculation=speculation)) as llm:
        assert list(llm.generate(PROMPT, GREEDY, NEW).token_ids) == expected


@pytest.mark.parametrize("engine", ENGINES)
def test_prefixes_and_sessions(engine: str, artifact: Path, expected: list[int], tmp_path: Path) -> None:
    serving = ServingSettings(block_size=4, prefix_cache="radix")
    with LLM(artifact, engine, serving=serving) as llm:
        first, again = (llm.generate(PROMPT, GREEDY, NEW) for _ in range(2))
        assert list(first.token_ids) == list(again.token_ids) == expected
        assert again.cached_tokens > 0
        llm.save_session(tmp_path / "session", [*PROMPT, *expected])
        further = llm.generate([*PROMPT, *expected, 7], GREEDY, NEW).token_ids
    with LLM(artifact, engine, serving=serving) as llm:
        llm.load_session(tmp_path / "session")
        found = llm.generate([*PROMPT, *expected, 7], GREEDY, NEW)
        assert found.cached_tokens > len(PROMPT) and found.token_ids == further


def test_the_prediction_head_has_packed_weights(artifact: Path) -> None:
    kinds = [
        DType.from_onnx(tensor.data_type) for tensor in read_onnx(artifact, MTP_MODEL_FILE).model.graph.initializer
    ]
    assert kinds.count(DType.INT4) >= 7


def test_a_model_of_transformers_runs_its_quantised_checkpoint(checkpoints: tuple[Path, Path], tmp_path: Path) -> None:
    quantized, plain = checkpoints
    model: Any = AutoModelForCausalLM.from_pretrained(plain, dtype=torch.float32).eval()
    ids = torch.tensor([PROMPT])
    way = {"max_new_tokens": NEW, "min_new_tokens": NEW, "do_sample": False}
    tokens = model.generate(ids, **way).tolist()
    # As transformers loads it where the library of the format is installed.
    model.config.name_or_path = str(quantized)
    with accelerate(model, "onnxruntime", max_cache_len=96, cache_folder=tmp_path, threads=1) as fast:
        assert fast.generate(ids, **way).tolist() == tokens
    (weights,) = tmp_path.rglob("weights/quantized.safetensors")
    assert weights.stat().st_size > 10_000
