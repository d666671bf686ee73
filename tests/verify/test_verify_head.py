"""Verification of prediction heads: every engine agrees with transformers' layers, and a wrong head is found."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch

from hybridge.artifact.config import MTP_CONFIG_FILE, MTP_MODEL_FILE
from hybridge.artifact.errors import ArtifactError, CheckpointError, HybridgeError
from hybridge.artifact.progress import NoProgress
from hybridge.artifact.safetensors_file import read_safetensors
from hybridge.verification.expected import Inputs
from hybridge.verification.head_cases import head_cases
from hybridge.verification.head_reference import head_folder
from hybridge.verification.options import VerifyOptions
from hybridge.verification.report import PREDICTION_HEAD, Comparison
from hybridge.verification.verifier import verify
from tests.exporter.test_mtp_export import FAMILIES
from tests.support.artifacts import ArtifactCache, Exported
from tests.support.checkpoint_edits import edit_tensors
from tests.verify.test_verify import perturb

OPTIONS = VerifyOptions("onnxruntime-portable", (1, 7, 19), 2)
CASE = "qwen3_next experts"
# transformers loads the head, which takes too long for every push.
LOADS = pytest.mark.slow


def exported(
    artifacts: ArtifactCache, case: str = CASE, stored: str = "float32", head_dim: int | None = None, **options: Any
) -> Exported:
    given = {**FAMILIES[case], **({} if head_dim is None else {"head_dim": head_dim})}
    pattern = given.pop("pattern", "")
    return artifacts.get(case.split()[0], stored, given, mtp_pattern=pattern, layout="paged", max_seq_len=64, **options)


def swap_head(folder: Path) -> None:
    """Replace the head's graph by a readable one of equal size that computes something else."""
    file = folder / MTP_MODEL_FILE
    model = onnx.load(file, load_external_data=False)
    norm = next(node for node in model.graph.node if node.op_type == "RMSNormalization")
    next(attribute for attribute in norm.attribute if attribute.name == "epsilon").f = 0.5
    size = file.stat().st_size
    file.unlink()
    file.write_bytes(model.SerializeToString())
    assert file.stat().st_size == size


def head_comparisons(checkpoint: Path, artifact: Path, config: Any, options: VerifyOptions) -> list[Comparison]:
    """The comparisons of the head alone."""
    prompts = [np.arange(3, 3 + n) % 97 for n in options.prompt_lengths or ()]
    sequences = [np.concatenate([prompt, np.arange(options.decode_steps)]) for prompt in prompts]
    notes: list[str] = []
    inputs = Inputs(prompts, sequences, ())
    cases = head_cases(checkpoint, checkpoint, artifact, config, inputs, options, NoProgress(), notes)
    assert cases is not None and not notes
    return list(cases.compared(artifact, options.engine, options, 1e-4, NoProgress(), notes))


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["auto", "torch", "tensorrt-network", "tensorrt-network-native"])
@pytest.mark.parametrize("case", FAMILIES)
def test_verify_compares_heads(case: str, engine: str, artifacts: ArtifactCache) -> None:
    if engine.startswith("tensorrt"):
        pytest.importorskip("tensorrt_rtx", reason="needs the tensorrt-rtx package")
    made = exported(artifacts, case, "bfloat16" if engine == "torch" else "float32", head_dim=64)
    report = verify(made.checkpoint, made.folder, VerifyOptions(engine, (1, 7, 19), 2))
    assert report.passed, report.verdict()
    assert report.verdict().endswith("; prediction head included")
    assert {c.engine for c in report.comparisons if c.in_head} == set(report.engines)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("mtp.fc.weight", " in the input of its first layer"),
        ("mtp.layers.0.self_attn.v_proj.weight", ", first in its layer 0 (attention)"),
    ],
)
def test_a_wrong_weight_of_the_head_is_found(name: str, place: str, artifacts: ArtifactCache, tmp_path: Path) -> None:
    made = exported(artifacts, weights="copy")
    damaged = Path(shutil.copytree(made.folder, tmp_path / "damaged"))
    shards = [read_safetensors(path) for path in sorted((damaged / "weights").iterdir())]
    perturb(next(shard.tensors[name] for shard in shards if name in shard.tensors))
    report = verify(made.checkpoint, damaged, OPTIONS)
    assert report.failing_place == PREDICTION_HEAD and report.first_failing_layer is None
    assert report.verdict() == f"FAILED: the model agrees, its prediction head differs{place}"
    assert report.to_json()["passed"] is False


def _drop(name: str) -> Callable[[dict[str, torch.Tensor]], object]:
    return lambda tensors: [tensors.pop(n) for n in list(tensors) if n.startswith(name)]


def _reshape(name: str) -> Callable[[dict[str, torch.Tensor]], object]:
    return lambda tensors: tensors.update({name: tensors[name][..., :-1].contiguous()})


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (_drop("mtp."), r"expected a checkpoint with a multi-token prediction head .* found none"),
        (
            _drop("mtp.pre_fc_norm_hidden"),
            r"expected the tensor mtp.pre_fc_norm_hidden.weight .* none",
        ),
        pytest.param(
            _drop("mtp.layers.0.self_attn.k_proj"),
            r"expected all tensors of a prediction head of attention, .*k_proj",
            marks=LOADS,
        ),
        pytest.param(_reshape("mtp.fc.weight"), r"expected mtp.fc.weight of shape \[48, 96\]", marks=LOADS),
        pytest.param(_reshape("mtp.layers.0.self_attn.q_proj.weight"), "cannot load it", marks=LOADS),
        (_drop("mtp.norm"), r"expected the tensor mtp.norm.weight"),
    ],
    ids=["none", "norm", "layer", "projection", "matrix", "last"],
)
def test_a_bad_head_of_the_checkpoint_is_refused(
    edit: Any, message: str, artifacts: ArtifactCache, tmp_path: Path
) -> None:
    made = exported(artifacts)
    checkpoint = Path(shutil.copytree(made.checkpoint, tmp_path / "checkpoint"))
    edit_tensors(checkpoint, edit)
    with pytest.raises(CheckpointError, match=message) as error:
        head_comparisons(checkpoint, made.folder, made.config, OPTIONS)
    assert "\n" not in str(error.value) and str(checkpoint) in str(error.value)


@LOADS
def test_bad_head_files_are_refused(artifacts: ArtifactCache, tmp_path: Path) -> None:
    made = exported(artifacts)

    def copied(name: str) -> Path:
        return Path(shutil.copytree(made.folder, tmp_path / name))

    missing = copied("missing")
    (missing / MTP_MODEL_FILE).unlink()
    other = copied("other")
    document = json.loads((other / MTP_CONFIG_FILE).read_text())
    (other / MTP_CONFIG_FILE).write_text(json.dumps({**document, "hidden_size": 64}))
    damaged = copied("damaged")
    (damaged / MTP_MODEL_FILE).write_bytes((damaged / MTP_MODEL_FILE).read_bytes()[:-7])
    for folder, message in (
        (missing, "mtp.onnx"),
        (other, "mtp.json: expected the head of the artifact's model, with hidden_size 48, found 64"),
        (damaged, "mtp.onnx"),
    ):
        with pytest.raises(HybridgeError, match=message) as error:
            head_comparisons(made.checkpoint, folder, made.config, OPTIONS)
        assert isinstance(error.value, ArtifactError) and "\n" not in str(error.value)


def test_a_head_of_equal_size_that_is_another_is_found(artifacts: ArtifactCache, tmp_path: Path) -> None:
    made = artifacts.get("qwen3_next", "float32", mtp_pattern="", layout="paged", max_seq_len=64)
    folder = Path(shutil.copytree(made.folder, tmp_path / "swapped"))
    swap_head(folder)
    with pytest.raises(ArtifactError, match=r"mtp\.onnx: its content changed since the export: export") as error:
        verify(made.checkpoint, folder, OPTIONS)
    assert "\n" not in str(error.value)


def test_the_reference_of_a_head_leaves_no_files(artifacts: ArtifactCache, tmp_path: Path) -> None:
    made = exported(artifacts)
    with head_folder(made.checkpoint) as folder:
        config = json.loads((folder / "config.json").read_text())
        assert config["layer_types"] == ["full_attention"] and config["num_hidden_layers"] == 1
    assert not folder.exists()


@pytest.mark.slow
def test_a_head_agrees_in_every_kind_of_step(artifacts: ArtifactCache) -> None:
    made = exported(artifacts)
    found = head_comparisons(made.checkpoint, made.folder, made.config, OPTIONS)
    assert all(c.passed and c.in_head for c in found), [c for c in found if not c.passed][:3]
    compared = {(c.scenario, c.item) for c in found}
    for scenario in ("one-shot prefill", "chunked prefill", "ragged batch", "prefill beside decode", "decode"):
        assert {(f"head: {scenario}", item) for item in ("logits", "key", "value")} <= compared
    assert {("head: one-shot prefill", "embeddings"), ("head: one-shot prefill", "hidden")} <= compared
    assert {("head: row without tokens", "unchanged"), ("head: free blocks and slots", "unchanged")} <= compared
