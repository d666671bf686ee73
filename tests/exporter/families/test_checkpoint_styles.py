"""The same model written in the ways that checkpoints are written: other config fields, other tensor names."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import CheckpointError
from hybridge.exporter.checkpoint import open_checkpoint
from hybridge.exporter.families.parameters import bind_parameters
from hybridge.exporter.families.registry import decoder_config
from hybridge.verification.transformers_model import group_gated_norms
from tests.support.agreement import TOLERANCE, assert_one_shot_agrees, relative_error, tokens_of
from tests.support.checkpoint_edits import copy_checkpoint, edit_config, edit_tensors, read_config, rename_tensors
from tests.support.eager_decoder import EagerDecoder
from tests.support.tiny_models import save_tiny_model

PATTERN = "M-M*-M"
NAMES = {"M": "mamba", "*": "attention", "-": "mlp"}
NEW_NAMES = {"M": "linear_attention", "*": "full_attention", "-": "mlp"}
TYPE_STYLES: list[dict[str, Any]] = [
    {"hybrid_override_pattern": PATTERN},
    {"layers_block_type": [NAMES[c] for c in PATTERN]},
    {"layers_block_type": [NEW_NAMES[c] for c in PATTERN]},
    {"layer_types": [NEW_NAMES[c] for c in PATTERN]},
    {"hybrid_override_pattern": PATTERN, "layers_block_type": [NEW_NAMES[c] for c in PATTERN]},
]


@pytest.mark.parametrize("style", TYPE_STYLES, ids=str)
def test_nemotron_h_layer_types(style: dict[str, Any], tmp_path: Path) -> None:
    folder = save_tiny_model(tmp_path / "a", "nemotron_h")
    expected = decoder_config(read_config(folder))
    edit_config(folder, remove=("layers_block_type",), **style)
    assert decoder_config(read_config(folder)) == expected


def test_nemotron_h_layer_types_that_contradict_are_refused(tmp_path: Path) -> None:
    folder = edit_config(save_tiny_model(tmp_path / "a", "nemotron_h"), hybrid_override_pattern="M-M*MM")
    with pytest.raises(CheckpointError, match="hybrid_override_pattern"):
        decoder_config(read_config(folder))


def test_nemotron_h_first_release(tmp_path: Path) -> None:
    """The field names of the first published checkpoints, with their names of the tensors."""
    folder = save_tiny_model(tmp_path / "a", "nemotron_h")
    old = copy_checkpoint(folder, tmp_path / "old")
    rename_tensors(old, renamed_to("backbone.", "embeddings"))
    fields = {"hybrid_override_pattern": PATTERN, "rms_norm_eps": 1e-5, "time_step_rank": 256, "torch_dtype": "float32"}
    edit_config(old, ("layers_block_type", "mtp_layers_block_type", "dtype"), attention_head_dim=10, **fields)
    assert_one_shot_agrees(old, reference_folder=folder)


@pytest.mark.parametrize("old_name", ["mamba_d_conv", "mamba_n_groups", "mamba_chunk_size", "mamba_conv_bias"])
def test_nemotron_h_old_field_names(old_name: str, tmp_path: Path) -> None:
    new = {
        "mamba_d_conv": "conv_kernel",
        "mamba_n_groups": "n_groups",
        "mamba_chunk_size": "chunk_size",
        "mamba_conv_bias": "use_conv_bias",
    }[old_name]
    config = read_config(save_tiny_model(tmp_path, "nemotron_h"))
    renamed = {**config, old_name: config[new]}
    del renamed[new]
    assert decoder_config(renamed) == decoder_config(config)
    other = {**config, old_name: not config[new] if isinstance(config[new], bool) else config[new] + 1}
    with pytest.raises(CheckpointError, match=old_name):
        decoder_config(other)


def renamed_to(root: str, embedding: str) -> Callable[[str], str]:
    """Tensor names with another first part, and another name of the embedding."""

    def rename(name: str) -> str:
        if name == "lm_head.weight":
            return name
        rest = re.sub(r"^(model|backbone)\.", "", name)
        return root + re.sub(r"^(embeddings?|embed_tokens)\.", f"{embedding}.", rest)

    return rename


NAMES_IN_USE = [
    *(("nemotron_h", root, name) for root in ("model.", "backbone.", "") for name in ("embeddings", "embedding")),
    *(("mamba2", root, name) for root in ("model.", "backbone.", "") for name in ("embeddings", "embedding")),
    *((family, "", "embed_tokens") for family in ("llama", "qwen3", "bamba", "granitemoehybrid")),
]


@pytest.mark.parametrize(("model_type", "root", "embedding"), NAMES_IN_USE, ids=str)
def test_tensor_names(model_type: str, root: str, embedding: str, tmp_path: Path) -> None:
    folder = save_tiny_model(tmp_path / "a", model_type)
    renamed = rename_tensors(copy_checkpoint(folder, tmp_path / "b"), renamed_to(root, embedding))
    assert f"{root}{embedding}.weight" in open_checkpoint(renamed).tensors
    assert_one_shot_agrees(renamed, reference_folder=folder)


@pytest.mark.parametrize("model_type", ["llama", "qwen3", "mamba2", "bamba", "granitemoehybrid"])
def test_tied_checkpoint_that_stores_the_head_again(model_type: str, tmp_path: Path) -> None:
    folder = save_tiny_model(tmp_path / "a", model_type, tie_word_embeddings=True)
    tensors = open_checkpoint(folder).tensors
    assert "lm_head.weight" not in tensors
    embedding = next(n for n in tensors if n.endswith(("embed_tokens.weight", "embeddings.weight")))
    twice = copy_checkpoint(folder, tmp_path / "b")
    edit_tensors(twice, lambda t: t.update({"lm_head.weight": t[embedding].clone()}))
    assert_one_shot_agrees(twice, reference_folder=folder)


def test_tied_checkpoint_with_another_head_is_refused(tmp_path: Path) -> None:
    folder = save_tiny_model(tmp_path, "llama", tie_word_embeddings=True)
    edit_tensors(folder, lambda t: t.update({"lm_head.weight": t["model.embed_tokens.weight"] + 1}))
    checkpoint = open_checkpoint(folder)
    with pytest.raises(CheckpointError, match=r"lm_head\.weight"):
        bind_parameters(decoder_config(checkpoint.config), checkpoint.tensors)


def test_tied_nemotron_h(tmp_path: Path) -> None:
    """transformers never ties this family's head; a model whose head equals its embedding is the same model."""
    untied = save_tiny_model(tmp_path / "a", "nemotron_h")
    (embedding,) = (name for name in open_checkpoint(untied).tensors if "embedding" in name)
    edit_tensors(untied, lambda t: t.update({"lm_head.weight": t[embedding].clone()}))
    tied = copy_checkpoint(untied, tmp_path / "b")
    edit_tensors(tied, lambda t: t.__delitem__("lm_head.weight"))
    edit_config(tied, tie_word_embeddings=True)
    assert_one_shot_agrees(tied, reference_folder=untied)
    assert_one_shot_agrees(tied)


def test_a_nemotron_h_that_is_called_tied_keeps_the_head_that_it_stores(tmp_path: Path) -> None:
    """As transformers does, which saves such models so."""
    folder = save_tiny_model(tmp_path, "nemotron_h", tie_word_embeddings=True)
    assert "lm_head.weight" in open_checkpoint(folder).tensors
    assert_one_shot_agrees(folder)


def test_multi_token_prediction_tensors_are_left_out(tmp_path: Path) -> None:
    folder = save_tiny_model(tmp_path / "a", "nemotron_h")
    extended = copy_checkpoint(folder, tmp_path / "b")
    edit_tensors(extended, lambda t: t.update({"mtp.layers.0.norm.weight": torch.ones(3)}))
    assert_one_shot_agrees(extended, reference_folder=folder)


@pytest.mark.parametrize("field", ["dtype", "torch_dtype"])
@pytest.mark.parametrize("prefix", ["", "torch."])
def test_both_names_of_the_type(field: str, prefix: str, tmp_path: Path) -> None:
    folder = save_tiny_model(tmp_path, "llama", dtype="bfloat16")
    edit_config(folder, ("dtype",), **{field: f"{prefix}bfloat16"})
    assert open_checkpoint(folder).dtype is DType.BFLOAT16


def test_without_a_named_type_the_weights_decide(tmp_path: Path) -> None:
    folder = edit_config(save_tiny_model(tmp_path, "llama", dtype="bfloat16"), ("dtype",))
    assert open_checkpoint(folder).dtype is DType.BFLOAT16


@pytest.mark.parametrize(("value", "ids"), [(2, (2,)), ([2, 7], (2, 7)), (None, ())], ids=str)
def test_end_of_sequence_ids(value: object, ids: tuple[int, ...], tmp_path: Path) -> None:
    folder = edit_config(save_tiny_model(tmp_path, "llama"), eos_token_id=value)
    (folder / "generation_config.json").unlink()
    assert open_checkpoint(folder).eos_token_ids == ids
    (folder / "generation_config.json").write_text('{"eos_token_id": [5, 9]}')
    assert open_checkpoint(folder).eos_token_ids == (5, 9)


def test_early_mamba2_config(tmp_path: Path) -> None:
    """Fields of the first published configs; their norm_before_gate was never honoured and is not true."""
    folder = save_tiny_model(tmp_path / "a", "mamba2")
    early = copy_checkpoint(folder, tmp_path / "b")
    fields = {"intermediate_size": 96, "time_step_init_scheme": "random", "time_step_scale": 1.0}
    edit_config(early, norm_before_gate=True, rms_norm=True, time_step_rank=256, **fields)
    assert_one_shot_agrees(early, reference_folder=folder)


def test_granite_config_with_its_training_fields(tmp_path: Path) -> None:
    folder = save_tiny_model(tmp_path / "a", "granitemoehybrid")
    published = copy_checkpoint(folder, tmp_path / "b")
    edit_config(published, init_method="mup", normalization_function="rmsnorm", position_embedding_type="nope")
    assert_one_shot_agrees(published, reference_folder=folder)


def as_released(tensors: dict[str, Any]) -> None:
    """OLMo-Hybrid's own names and pieces; transformers renames a norm and cuts the convolutions evenly when saving."""
    norm = "model.layers.1.feedforward_layer_norm.weight"
    tensors["model.layers.1.post_attention_layernorm.weight"] = tensors.pop(norm)
    for index in (0, 2, 3):
        names = [f"model.layers.{index}.linear_attn.{part}_conv1d.weight" for part in "qkv"]
        joined = torch.cat([tensors[name] for name in names])
        tensors.update(zip(names, joined.split([48, 48, 240]), strict=True))


def with_new_norm_names(tensors: dict[str, Any]) -> None:
    """OLMo-Hybrid's norms as transformers names them in memory."""
    new = {"attention_layer_norm": "input_layernorm", "feedforward_layer_norm": "post_attention_layernorm"}
    for name in list(tensors):
        for old in new:
            if old in name:
                tensors[name.replace(old, new[old])] = tensors.pop(name)


@pytest.mark.parametrize("edit", [as_released, with_new_norm_names])
def test_olmo_hybrid_tensor_names(edit: Callable[[dict[str, Any]], None], tmp_path: Path) -> None:
    folder = save_tiny_model(tmp_path / "a", "olmo_hybrid")
    other = edit_tensors(copy_checkpoint(folder, tmp_path / "b"), edit)
    assert set(open_checkpoint(other).tensors) != set(open_checkpoint(folder).tensors)
    assert_one_shot_agrees(other, reference_folder=folder)


@pytest.mark.parametrize("wide", [True, False])
def test_residual_stream_of_a_bfloat16_mamba2(wide: bool, tmp_path: Path) -> None:
    """residual_in_fp32 keeps the stream in float32; transformers in bfloat16 is the oracle, to bfloat16's rounding."""
    from transformers import AutoModelForCausalLM

    folder = save_tiny_model(tmp_path, "mamba2", dtype="bfloat16", residual_in_fp32=wide)
    ours = EagerDecoder(folder, DType.BFLOAT16)
    tokens = tokens_of(97, 21)
    found = ours.step([tokens], [0], ours.zero_states(1, 21))
    assert {h.dtype for h in found.hidden} == {torch.float32 if wide else torch.bfloat16}
    with torch.no_grad():
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()
        group_gated_norms(model)
        expected = model(torch.from_numpy(tokens)[None]).logits[0]
    assert TOLERANCE < relative_error(found.logits[0], expected.float()) < 2e-2
