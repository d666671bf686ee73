"""Experts stored stacked, or one tensor for each matrix of each expert: the same model, and no weight written twice."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from safetensors.torch import load_file

from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import CheckpointError
from hybridge.exporter.export import export_checkpoint
from hybridge.exporter.options import ExportOptions
from hybridge.exporter.plan import plan_export
from tests.support.agreement import assert_one_shot_agrees
from tests.support.checkpoint_edits import copy_checkpoint, edit_config, edit_tensors
from tests.support.tiny_models import EXPERTS, save_tiny_model

Tensors = dict[str, torch.Tensor]
UP = {"qwen3_next": ("gate_proj", "up_proj"), "nemotron_h": ("up_proj",)}
COUNT = {"qwen3_next": 5, "nemotron_h": 6}
SMALL: dict[str, dict[str, Any]] = {
    "qwen3_next": {**EXPERTS["qwen3_next"], "num_hidden_layers": 1, "layer_types": ["full_attention"]},
    "nemotron_h": {**EXPERTS["nemotron_h"], "hybrid_override_pattern": "*E"},
    "granitemoehybrid": {**EXPERTS["granitemoehybrid"], "num_hidden_layers": 1, "layer_types": ["full_attention"]},
}


def stacked(family: str) -> Callable[[Tensors], None]:
    """Join the experts of every layer, as transformers holds them in memory."""

    def edit(tensors: Tensors) -> None:
        blocks = {name.partition("experts.0.")[0] for name in tensors if "experts.0." in name}
        assert blocks
        for block in blocks:
            for joined, parts in ((stacked_up(family), UP[family]), ("down_proj", ("down_proj",))):
                rows: list[torch.Tensor] = []
                while (first := f"{block}experts.{len(rows)}.{parts[0]}.weight") in tensors:
                    names = (first.replace(parts[0], part) for part in parts)
                    rows.append(torch.cat([tensors.pop(name) for name in names]))
                tensors[f"{block}experts.{joined}"] = torch.stack(rows)

    return edit


def stacked_up(family: str) -> str:
    return "gate_up_proj" if len(UP[family]) == 2 else "up_proj"


@pytest.fixture(scope="module", params=sorted(UP))
def layouts(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path, Path]:
    """A family, a checkpoint as transformers writes it, and the same with stacked experts; not to be changed."""
    root = tmp_path_factory.mktemp("layouts")
    folder = save_tiny_model(root / "each", request.param, **SMALL[request.param])
    return request.param, folder, edit_tensors(copy_checkpoint(folder, root / "stacked"), stacked(request.param))


def test_both_layouts_agree_with_transformers(layouts: tuple[str, Path, Path]) -> None:
    _, each, whole = layouts
    assert_one_shot_agrees(each)
    assert_one_shot_agrees(whole, reference_folder=each)


def test_granite_names_of_memory(tmp_path: Path) -> None:
    folder = save_tiny_model(tmp_path / "a", "granitemoehybrid", **SMALL["granitemoehybrid"])
    other = copy_checkpoint(folder, tmp_path / "b")

    def edit(tensors: Tensors) -> None:
        block = "model.layers.0.block_sparse_moe."
        for old, new in (
            ("input_linear.weight", "experts.gate_up_proj"),
            ("output_linear.weight", "experts.down_proj"),
            ("router.layer.weight", "router.weight"),
        ):
            tensors[block + new] = tensors.pop(block + old)

    assert_one_shot_agrees(edit_tensors(other, edit), reference_folder=folder)


def test_no_expert_is_copied(layouts: tuple[str, Path, Path], tmp_path: Path) -> None:
    """Every tensor is one initializer that points into the linked shard; nothing of the experts is derived."""
    family, *checkpoints = layouts
    for checkpoint, count, joins in zip(checkpoints, (COUNT[family] * (len(UP[family]) + 1), 2), (2, 0), strict=True):
        out = tmp_path / checkpoint.name
        export_checkpoint(checkpoint, out, ExportOptions(dtype=DType.BFLOAT16))
        model = onnx.load(out / "model.onnx", load_external_data=False)
        experts = [tensor for tensor in model.graph.initializer if ".experts." in tensor.name]
        assert len(experts) == count
        locations = {entry.value for tensor in experts for entry in tensor.external_data if entry.key == "location"}
        assert locations == {"weights/model.safetensors"}
        assert sum(n.op_type == "Concat" and ".experts." in n.input[0] for n in model.graph.node) == joins
        assert sum(n.op_type == "routed_experts" for n in model.graph.node) == 1
        tensors = load_file(checkpoint / "model.safetensors")
        assert plan_export(checkpoint).weight_bytes == sum(tensor.nbytes for tensor in tensors.values())


def damaged(layouts: tuple[str, Path, Path], tmp_path: Path, edit: Callable[[Tensors, str], None]) -> Path:
    """The checkpoint with one tensor an expert after ``edit`` of the tensors and a name that the second expert has."""
    folder = copy_checkpoint(layouts[1], tmp_path / "checkpoint")

    def change(tensors: Tensors) -> None:
        edit(tensors, next(name for name in sorted(tensors) if ".experts.1." in name))

    return edit_tensors(folder, change)


def drop(tensors: Tensors, name: str) -> None:
    del tensors[name]


def narrow(tensors: Tensors, name: str) -> None:
    tensors[name] = tensors[name].half()


def cut(tensors: Tensors, name: str) -> None:
    tensors[name] = tensors[name][:, 1:]


def add(tensors: Tensors, name: str) -> None:
    tensors[name.replace("experts.1.", "experts.9.")] = tensors[name].clone()


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (drop, r"expected the tensor .*experts\.1\..*found none"),
        (narrow, r"experts\.0\..*expected one type for all experts of a layer"),
        (cut, r"experts\.1\..*expected shape"),
        (add, r"tensors that \w+ does not use: .*experts\.9\."),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_damaged_experts_are_named(
    layouts: tuple[str, Path, Path], edit: Callable[[Tensors, str], None], words: str, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match=words):
        plan_export(damaged(layouts, tmp_path, edit))


def test_the_scan_reads_every_expert(layouts: tuple[str, Path, Path], tmp_path: Path) -> None:
    def poison(tensors: Tensors, name: str) -> None:
        tensors[name][2, 3] = float("nan")

    with pytest.raises(CheckpointError, match=r"experts\.1\..*nan"):
        export_checkpoint(damaged(layouts, tmp_path, poison), tmp_path / "out")


def test_more_experts_than_the_checkpoint_has_tensors_are_refused_at_once(tmp_path: Path) -> None:
    """Without a name for each of them, which would take minutes and gigabytes."""
    folder = edit_config(save_tiny_model(tmp_path / "a", "qwen3_next", **SMALL["qwen3_next"]), num_experts=10**8)
    with pytest.raises(CheckpointError, match="expected 100000000 experts by the config"):
        plan_export(folder)
