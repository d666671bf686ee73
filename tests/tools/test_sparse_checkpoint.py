"""Sparse checkpoints: real names and sizes, and an export that takes them."""

from __future__ import annotations

import json
from math import prod
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from hybridge.exporter.checkpoint import open_checkpoint
from hybridge.exporter.families.parameters import REDUNDANT
from hybridge.exporter.families.registry import FAMILIES
from hybridge.exporter.options import OPTIONAL, ExportOptions
from hybridge.exporter.plan import plan_export
from tests.support.tiny_models import BASE_CONFIGS, EXPERTS, save_tiny_model
from tests.support.versions import skip_without_family
from tools.published_configs import PUBLISHED
from tools.sparse_checkpoint import tensors_of_config, write_sparse_checkpoint

# Published checkpoints have other norm names and whole convolutions (olmo_hybrid), stacked experts, and another name
# of the first MLP (kimi_linear) than what transformers saves.
OTHERWISE_SAVED = ("olmo_hybrid", "qwen3_5_moe_text", "kimi_linear")


@pytest.mark.parametrize("family", [*BASE_CONFIGS, *(f"{family} with experts" for family in EXPERTS)])
def test_names_and_shapes_are_those_that_transformers_saves(family: str, tmp_path: Path) -> None:
    family, _, experts = family.partition(" with ")
    fields = {**BASE_CONFIGS[family], **(EXPERTS[family] if experts else {})}
    saved = {
        name: slot.shape for name, slot in open_checkpoint(save_tiny_model(tmp_path, family, **fields)).tensors.items()
    }
    saved = {name: shape for name, shape in saved.items() if not name.endswith(REDUNDANT)}
    ours = {name: shape for name, (_, shape) in tensors_of_config({"model_type": family, **fields}).items()}
    renamed = {name.replace("embedding.weight", "embeddings.weight"): shape for name, shape in saved.items()}
    if family in OTHERWISE_SAVED:
        assert sum(map(prod, ours.values())) == sum(map(prod, renamed.values()))
    else:
        assert ours == renamed


@pytest.mark.parametrize("name", ["Qwen3-0.6B", "NVIDIA-Nemotron-3-Nano-30B-A3B", "Qwen3.5-35B-A3B"])
def test_real_sizes_take_no_room_and_can_be_exported(name: str, tmp_path: Path) -> None:
    nbytes = write_sparse_checkpoint(tmp_path / "a", PUBLISHED[name])
    assert nbytes > 1e9
    assert sum(512 * path.stat().st_blocks for path in (tmp_path / "a").iterdir()) < 20e6
    plan = plan_export(tmp_path / "a")
    assert plan.weight_bytes == nbytes
    first = next((tmp_path / "a").glob("*.safetensors"))
    with safe_open(first, "np") as weights:
        assert len(list(weights.keys())) > 10


# transformers cannot build models of the configs that it saves for lfm2_moe and ministral.
@pytest.mark.slow
@pytest.mark.parametrize("family", sorted({*FAMILIES} - {"lfm2_moe", "ministral"}))
def test_every_family_at_the_size_of_its_default_config(family: str, tmp_path: Path) -> None:
    """The defaults of transformers' config classes are mostly those of a published checkpoint."""
    skip_without_family(family)
    config = CONFIG_MAPPING[family]()
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    stored = {name for name in model.state_dict() if not name.endswith(REDUNDANT)}
    buffers = [tensor for name, tensor in model.named_buffers() if name in stored]
    expected = sum(tensor.numel() for tensor in (*model.parameters(), *buffers))
    fields = {**json.loads(config.to_json_string(use_diff=False)), "model_type": family}
    assert sum(prod(shape) for _, shape in tensors_of_config(fields).values()) == expected
    write_sparse_checkpoint(tmp_path / "a", fields)
    plan = plan_export(tmp_path / "a", ExportOptions(max_seq_len=4096, kernels=OPTIONAL))
    assert len(plan.decoder.layers) == config.num_hidden_layers


def test_gpt_oss_is_stored_in_mxfp4(tmp_path: Path) -> None:
    nbytes = write_sparse_checkpoint(tmp_path / "a", PUBLISHED["gpt-oss-120B"])
    assert 60e9 < nbytes < 66e9  # published: 65 GB
    record = plan_export(tmp_path / "a").config.quantization
    assert record is not None and record.formats == {"mxfp4": 72}


def test_an_existing_folder_is_left_alone(tmp_path: Path) -> None:
    with pytest.raises(FileExistsError):
        write_sparse_checkpoint(tmp_path, PUBLISHED["Qwen3-0.6B"])


def test_layers_of_mixed_precision_are_stored_as_modelopt_does(tmp_path: Path) -> None:
    experts = "backbone.layers.1.mixer.experts.0"
    layers = {
        "backbone.layers.0.mixer.in_proj": {"quant_algo": "FP8"},
        f"{experts}.up_proj": {"quant_algo": "W4A16_NVFP4", "group_size": 16},
        f"{experts}.down_proj": {"quant_algo": "W4A16_NVFP4", "group_size": 16},
    }
    quantization = {"quantization": {"quant_algo": "MIXED_PRECISION", "quantized_layers": layers}}
    model = PUBLISHED["NVIDIA-Nemotron-3-Nano-30B-A3B"]
    nbytes = write_sparse_checkpoint(tmp_path / "a", model, quantization=quantization)
    assert 18e9 < nbytes < 21e9
    record = plan_export(tmp_path / "a").config.quantization
    assert record is not None
    assert record.formats == {"modelopt FP8": 23, "modelopt W4A16_NVFP4": 23 * 128 * 2}
    assert 4.5 < record.bits < 5.5
