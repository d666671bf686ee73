"""What cannot be honoured is refused by name, before anything is written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from hybridge.artifact.errors import CheckpointError, HybridgeError, UnsupportedError
from hybridge.exporter.export import export_checkpoint
from hybridge.exporter.families.registry import FAMILIES, decoder_config
from hybridge.exporter.options import ExportOptions
from hybridge.exporter.plan import plan_export
from tests.support.checkpoint_edits import copy_checkpoint, edit_config, edit_tensors, read_config
from tests.support.tiny_models import BASE_CONFIGS, save_tiny_model


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One sound checkpoint of every family, made on first use, not to be changed."""
    return Checkpoints(tmp_path_factory.mktemp("sound"))


class Checkpoints(dict[str, Path]):
    """By family, in folders of ``root``."""

    def __init__(self, root: Path) -> None:
        super().__init__()
        self._root = root

    def __missing__(self, family: str) -> Path:
        return self.setdefault(family, save_tiny_model(self._root / family, family))


def assert_refused(folder: Path, *named: str, error: type[HybridgeError] = HybridgeError) -> str:
    """Exporting ``folder`` fails with an error that holds ``named``, and leaves nothing next to the checkpoint."""
    before = sorted(folder.parent.rglob("*"))
    with pytest.raises(error) as caught:
        export_checkpoint(folder, folder.parent / "out")
    assert sorted(folder.parent.rglob("*")) == before
    for text in named:
        assert text in str(caught.value)
    assert caught.value.exit_code == 2
    return str(caught.value)


UNSUPPORTED: list[tuple[str, dict[str, Any], str]] = [
    ("nemotron_h", {"sliding_window": 128}, "sliding_window"),
    ("nemotron_h", {"attention_bias": True}, "attention_bias"),
    ("nemotron_h", {"mamba_hidden_act": "gelu"}, "mamba_hidden_act"),
    ("nemotron_h", {"mlp_hidden_act": "mish"}, "mlp_hidden_act"),
    ("qwen3_5_moe_text", {"norm_topk_prob": False}, "norm_topk_prob"),
    ("qwen3_moe", {"hidden_act": "tanh"}, "hidden_act"),
    ("gpt_oss", {"hidden_act": "gelu"}, "hidden_act"),
    ("qwen3_5_moe_text", {"decoder_sparse_step": 2}, "decoder_sparse_step"),
    ("qwen3_5_moe_text", {"mlp_only_layers": [1]}, "mlp_only_layers"),
    ("qwen3_5_moe_text", {"hidden_act": "gelu"}, "hidden_act"),
    ("granitemoehybrid", {"position_embedding_type": "alibi"}, "position_embedding_type"),
    ("granitemoehybrid", {"normalization_function": "layernorm"}, "normalization_function"),
    ("granitemoehybrid", {"hidden_act": "relu"}, "hidden_act"),
    ("bamba", {"hidden_act": "gelu"}, "hidden_act"),
    ("minimax", {"sliding_window": 5}, "sliding_window"),
    ("mamba2", {"hidden_act": "relu"}, "hidden_act"),
    ("mamba2", {"rms_norm": False}, "rms_norm"),
    ("llama", {"hidden_act": "xielu"}, "hidden_act"),
    ("olmo_hybrid", {"hidden_act": "gelu"}, "hidden_act"),
    ("olmo_hybrid", {"linear_use_gate": False}, "linear_use_gate"),
    ("qwen3", {"hidden_act": "mish"}, "hidden_act"),
    ("llama", {"rope_parameters": {"rope_type": "axial", "factor": 2.0}}, "rope_type"),
    ("llama", {"quantization_config": {"quant_method": "hqq", "bits": 4}}, "hqq"),
    ("llama", {"clip_qkv": 8.0}, "clip_qkv"),
    ("qwen3", {"attention_sink": 4, "logit_soft_cap": 30.0}, "attention_sink, logit_soft_cap"),
]


@pytest.mark.parametrize(("model_type", "fields", "named"), UNSUPPORTED, ids=str)
def test_unsupported_value(
    model_type: str, fields: dict[str, Any], named: str, checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    folder = edit_config(copy_checkpoint(checkpoints[model_type], tmp_path / "checkpoint"), **fields)
    assert_refused(folder, named, error=UnsupportedError)


# A size, and the message of the operator's declaration.
WITHOUT_KERNELS = [
    ("qwen3_next", "linear_key_head_dim", 12, "layer 0 (gated_delta_net)", "key_size from 8 to 256 in multiples of 8"),
    ("olmo_hybrid", "linear_value_head_dim", 264, "layer 0 (gated_delta_net)", "value_size from 8 to 256"),
    ("qwen3_5_text", "linear_conv_kernel_dim", 9, "layer 0 (gated_delta_net)", "kernel from 2 to 8"),
    ("nemotron_h", "ssm_state_size", 20, "layer 0 (mamba)", "state_size from 8 to 256 in multiples of 8"),
    ("mamba2", "state_size", 512, "layer 0 (mamba)", "state_size from 8 to 256 in multiples of 8"),
]


@pytest.mark.parametrize(("family", "field", "size", "layer", "supported"), WITHOUT_KERNELS)
def test_sizes_that_no_kernel_runs(
    family: str, field: str, size: int, layer: str, supported: str, tmp_path: Path
) -> None:
    folder = save_tiny_model(tmp_path / "checkpoint", family, **{field: size})
    assert_refused(folder, layer, supported, f"{size}; ", "`kernels='optional'`", error=UnsupportedError)
    assert plan_export(folder, ExportOptions(kernels="optional")).decoder.recurrent_bodies


@pytest.mark.parametrize("family", ["qwen3_next", "olmo_hybrid"])
def test_value_heads_that_key_heads_do_not_divide(family: str, checkpoints: dict[str, Path], tmp_path: Path) -> None:
    folder = edit_config(copy_checkpoint(checkpoints[family], tmp_path / "checkpoint"), linear_num_key_heads=4)
    assert_refused(folder, "linear_num_key_heads", "a divisor of linear_num_value_heads 6")


def test_unknown_model_type_lists_the_supported_ones(checkpoints: dict[str, Path], tmp_path: Path) -> None:
    folder = edit_config(copy_checkpoint(checkpoints["llama"], tmp_path / "checkpoint"), model_type="gpt2")
    assert_refused(folder, "unsupported model_type 'gpt2'", *FAMILIES, error=UnsupportedError)


def test_an_unknown_field_may_be_ignored_on_request(checkpoints: dict[str, Path], tmp_path: Path) -> None:
    folder = edit_config(copy_checkpoint(checkpoints["llama"], tmp_path / "checkpoint"), clip_qkv=8.0, new_norm=True)
    assert "`ignore_config_fields=[...]`" in assert_refused(folder, "clip_qkv", "new_norm")
    with pytest.raises(UnsupportedError, match=r"new_norm: they"):
        plan_export(folder, ExportOptions(ignore_config_fields=("clip_qkv",)))
    assert plan_export(folder, ExportOptions(ignore_config_fields=("clip_qkv", "new_norm"))).decoder


SIZES = {
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "intermediate_size",
    "shared_intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "num_heads",
    "state_size",
    "ssm_state_size",
    "n_groups",
    "conv_kernel",
    "chunk_size",
    "expand",
    "mamba_num_heads",
    "mamba_head_dim",
    "mamba_n_heads",
    "mamba_n_groups",
    "mamba_d_state",
    "mamba_d_conv",
    "mamba_d_head",
    "mamba_expand",
    "mamba_chunk_size",
    "linear_num_key_heads",
    "linear_num_value_heads",
    "linear_key_head_dim",
    "linear_value_head_dim",
    "linear_conv_kernel_dim",
    "num_experts",
    "num_experts_per_tok",
    "moe_intermediate_size",
    "shared_expert_intermediate_size",
    "max_position_embeddings",
}
NOT_READ = {
    "nemotron_h": {"num_hidden_layers", "expand", "num_experts_per_tok", "moe_intermediate_size"},
    "kimi_linear": {"head_dim"},
    "granitemoehybrid": {"intermediate_size", "num_experts_per_tok"},
    "qwen3_next": {"num_experts", "num_experts_per_tok", "moe_intermediate_size", "shared_expert_intermediate_size"},
}


@pytest.mark.parametrize("model_type", sorted(BASE_CONFIGS))
@pytest.mark.parametrize("bad", [0, -3, 2.5, "8", True, [4], {}], ids=repr)
def test_malformed_size(model_type: str, bad: object, checkpoints: dict[str, Path]) -> None:
    config = read_config(checkpoints[model_type])
    fields = SIZES & set(config) - NOT_READ.get(model_type, set())
    assert len(fields) >= 7
    for field in sorted(fields):
        with pytest.raises(CheckpointError, match=field if field != "mamba_d_head" else "mamba_"):
            decoder_config({**config, field: bad})


FLAGS = {
    "tie_word_embeddings",
    "mlp_bias",
    "use_bias",
    "use_conv_bias",
    "mamba_conv_bias",
    "mamba_proj_bias",
    "use_sliding_window",
    "residual_in_fp32",
    "linear_allow_neg_eigval",
    "conv_bias",
}
NUMBERS = {
    "rms_norm_eps",
    "layer_norm_epsilon",
    "norm_eps",
    "embedding_multiplier",
    "residual_multiplier",
    "attention_multiplier",
    "logits_scaling",
}


@pytest.mark.parametrize("model_type", sorted(BASE_CONFIGS))
def test_malformed_flags_and_numbers(model_type: str, checkpoints: dict[str, Path]) -> None:
    config = read_config(checkpoints[model_type])
    unread = {"mamba_proj_bias"} if model_type == "nemotron_h" else set()
    no_flags: list[object] = [1, "true", [0], 0.5]
    no_numbers: list[object] = ["1e-5", True, [1.0], float("nan"), float("inf")]
    rows = [(f, bad) for f in sorted(FLAGS & set(config) - unread) for bad in no_flags]
    rows += [(f, bad) for f in sorted(NUMBERS & set(config)) for bad in no_numbers]
    assert len(rows) >= 9
    for field, bad in rows:
        with pytest.raises(CheckpointError, match=field):
            decoder_config({**config, field: bad})


MALFORMED: list[tuple[str, dict[str, Any], str]] = [
    ("qwen3_next", {"num_experts": 3, "num_experts_per_tok": 4}, "num_experts_per_tok"),
    ("qwen3_next", {"num_experts": -1}, "num_experts"),
    ("granitemoehybrid", {"num_local_experts": 3, "num_experts_per_tok": 4}, "num_experts_per_tok"),
    ("granitemoehybrid", {"num_local_experts": -1}, "num_local_experts"),
    ("nemotron_h", {"layers_block_type": ["moe"], "n_group": 3}, "n_group"),
    ("nemotron_h", {"layers_block_type": ["moe"], "n_group": 8}, "n_group"),
    ("nemotron_h", {"layers_block_type": ["moe"], "n_group": 2, "topk_group": 3}, "topk_group"),
    ("nemotron_h", {"layers_block_type": ["moe"], "n_group": 4, "num_experts_per_tok": 3}, "num_experts_per_tok"),
    ("nemotron_h", {"layers_block_type": ["moe"], "n_routed_experts": 0}, "n_routed_experts"),
    ("nemotron_h", {"layers_block_type": ["moe"], "routed_scaling_factor": "2"}, "routed_scaling_factor"),
    ("llama", {"num_key_value_heads": 4}, "num_key_value_heads"),
    ("gemma3_text", {"_sliding_window_pattern": 3, "layer_types": None}, "_sliding_window_pattern"),
    ("gpt_oss", {"experts_per_token": 3}, "experts_per_token"),
    ("internlm3", {"qkv_bias": True}, "qkv_bias"),
    ("helium", {"head_dim": 16}, "head_dim"),
    ("llama", {"num_attention_heads": 5, "num_key_value_heads": 5, "head_dim": None}, "hidden_size"),
    ("nemotron_h", {"n_groups": 4}, "n_groups"),
    ("nemotron_h", {"hybrid_override_pattern": "", "layers_block_type": None}, "hybrid_override_pattern"),
    ("nemotron_h", {"layers_block_type": [["mamba"]]}, "layers_block_type"),
    ("nemotron_h", {"layers_block_type": 7}, "layers_block_type"),
    ("nemotron_h", {"layers_block_type": ["mambo"]}, "found 'mambo'"),
    ("nemotron_h", {"layers_block_type": None}, "layers_block_type"),
    ("nemotron_h", {"norm_eps": 0.1}, "norm_eps"),
    ("nemotron_h", {"time_step_limit": [0.3, 0.1]}, "time_step_limit"),
    ("nemotron_h", {"time_step_limit": [-1, 0.1]}, "time_step_limit"),
    ("nemotron_h", {"time_step_limit": 0.1}, "time_step_limit"),
    ("mamba2", {"time_step_limit": ["a", "b"]}, "time_step_limit"),
    ("mamba2", {"n_groups": 4}, "n_groups"),
    ("mamba2", {"expand": 3}, "num_heads"),
    ("mamba2", {"intermediate_size": 95}, "intermediate_size"),
    ("bamba", {"mamba_n_groups": 4}, "mamba_n_groups"),
    ("bamba", {"mamba_d_head": 17}, "mamba_n_heads"),
    ("bamba", {"mamba_n_heads": 7, "mamba_d_head": "auto"}, "mamba_n_heads"),
    ("bamba", {"attn_layer_indices": [4]}, "attn_layer_indices"),
    ("bamba", {"attn_layer_indices": [True]}, "attn_layer_indices"),
    ("bamba", {"attn_layer_indices": [[1]]}, "attn_layer_indices"),
    ("bamba", {"attn_layer_indices": "2"}, "attn_layer_indices"),
    ("granitemoehybrid", {"layer_types": ["mamba"] * 3}, "layer_types"),
    ("granitemoehybrid", {"layer_types": [["mamba"]] * 4}, "layer_types"),
    ("granitemoehybrid", {"layer_types": "mamba"}, "layer_types"),
    ("granitemoehybrid", {"layers_block_type": ["mamba"] * 4}, "layers_block_type"),
    ("granitemoehybrid", {"num_local_experts": None}, "num_local_experts"),
    ("qwen3", {"layer_types": ["full_attention"] * 2}, "layer_types"),
    ("qwen3", {"layer_types": [["full_attention"]] * 3}, "layer_types"),
    ("qwen3", {"layer_types": ["sliding_attention"] * 3}, "sliding_window"),
    ("qwen3", {"use_sliding_window": True, "sliding_window": 0}, "sliding_window"),
    ("qwen3", {"use_sliding_window": True, "sliding_window": "8"}, "sliding_window"),
    ("qwen3", {"max_window_layers": "all"}, "max_window_layers"),
    ("olmo_hybrid", {"layer_types": ["linear_attention", "mamba"] * 2}, "layer 1"),
    ("olmo_hybrid", {"layer_types": ["linear_attention"] * 3}, "layer_types"),
    ("qwen3_next", {"layer_types": ["linear_attention", "full_attention", "mamba", "full_attention"]}, "layer 2"),
    ("qwen3_5_text", {"layer_types": ["kimi_attention", *["full_attention"] * 3]}, "layer 0"),
    ("qwen3_5_moe_text", {"linear_num_key_heads": 4}, "linear_num_key_heads"),
    ("olmo_hybrid", {"linear_num_key_heads": 4}, "linear_num_key_heads"),
    (
        "olmo_hybrid",
        {"linear_num_key_heads": 96, "linear_num_value_heads": 96, "linear_key_head_dim": None},
        "linear_key",
    ),
    ("llama", {"num_hidden_layers": 10**9}, "num_hidden_layers"),
    ("llama", {"vocab_size": 10**400}, "vocab_size"),
    ("llama", {"head_dim": 2**31}, "head_dim"),
    ("llama", {"rms_norm_eps": 10**400}, "rms_norm_eps"),
    ("mamba2", {"time_step_limit": [0, 10**400]}, "time_step_limit"),
    ("llama", {"pad_token_id": 97}, "pad_token_id"),
    ("olmo_hybrid", {"pad_token_id": -98}, "pad_token_id"),
    ("granitemoehybrid", {"embedding_multiplier": None}, "embedding_multiplier"),
    ("granitemoehybrid", {"time_step_limit": None}, "time_step_limit"),
    ("nemotron_h", {"time_step_limit": [0.0, "inf"]}, "time_step_limit"),
    ("bamba", {"layers_block_type": ["full_attention"] * 4}, "layers_block_type"),
    ("llama", {"model_type": 3}, "model_type"),
    ("llama", {"dtype": 16}, "dtype"),
    ("llama", {"eos_token_id": "end"}, "eos_token_id"),
]


@pytest.mark.parametrize(("model_type", "fields", "named"), MALFORMED, ids=str)
def test_malformed_value(
    model_type: str, fields: dict[str, Any], named: str, checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    folder = edit_config(copy_checkpoint(checkpoints[model_type], tmp_path / "checkpoint"), **fields)
    (folder / "generation_config.json").unlink()
    assert_refused(folder, named)


@pytest.mark.parametrize("model_type", sorted(BASE_CONFIGS))
def test_weights_that_the_config_does_not_describe(
    model_type: str, checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    sound = checkpoints[model_type]
    name = next(n for n in _tensor_names(sound) if n.endswith("layers.1.mixer.norm.weight") or "layers.1." in n)

    missing = edit_tensors(copy_checkpoint(sound, tmp_path / "a"), lambda t: t.__delitem__(name))
    assert_refused(missing, name, "found none", error=CheckpointError)

    unused = edit_tensors(copy_checkpoint(sound, tmp_path / "b"), lambda t: t.update({f"{name}_scale": t[name] * 2}))
    assert_refused(unused, f"{name}_scale", "does not use", error=CheckpointError)

    wrong = edit_tensors(copy_checkpoint(sound, tmp_path / "c"), lambda t: t.update({name: t[name][..., :-1]}))
    assert_refused(wrong, name, "expected shape", error=CheckpointError)

    double = edit_tensors(copy_checkpoint(sound, tmp_path / "d"), lambda t: t.update({name: t[name].double()}))
    assert_refused(double, name, "float64", error=CheckpointError)

    whole = edit_tensors(copy_checkpoint(sound, tmp_path / "e"), lambda t: t.update({name: t[name].to(torch.int32)}))
    assert_refused(whole, name, "int32", error=CheckpointError)


@pytest.mark.parametrize(
    ("model_type", "field"),
    [
        ("llama", "attention_bias"),
        ("llama", "mlp_bias"),
        ("qwen3", "attention_bias"),
        ("mamba2", "use_bias"),
        ("bamba", "mamba_proj_bias"),
    ],
)
def test_biases_that_the_checkpoint_lacks_or_has_too_many(
    model_type: str, field: str, checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    lacking = edit_config(copy_checkpoint(checkpoints[model_type], tmp_path / "a"), **{field: True})
    assert_refused(lacking, ".bias", "found none", error=CheckpointError)
    (tmp_path / "b").mkdir()
    surplus = edit_config(save_tiny_model(tmp_path / "b" / "a", model_type, **{field: True}), **{field: False})
    assert_refused(surplus, ".bias", "does not use", error=CheckpointError)


def _tensor_names(folder: Path) -> list[str]:
    from hybridge.exporter.checkpoint import open_checkpoint

    return sorted(open_checkpoint(folder).tensors)
