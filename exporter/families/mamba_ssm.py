"""Configs of the mamba_ssm package, as in the original checkpoints (state-spaces/mamba-* and mamba2-*).

They have no model_type. Absent fields have the package's defaults: those of MambaConfig, of Mamba or of Mamba2.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hybridge.artifact.errors import CheckpointError
from hybridge.exporter.families.hf_config import HfConfig

# Fields that identify such a config.
MARKS = ("d_model", "n_layer")
# Fields of the implementation, and of the initialisation of parameters.
IMPLEMENTATION = ("fused_add_norm",)
MAMBA1_IMPLEMENTATION = ("use_fast_path", "dt_min", "dt_max", "dt_init", "dt_scale", "dt_init_floor")
MIXER_IMPLEMENTATION = ("use_mem_eff_path", "A_init_range", "conv_init", "dt_min", "dt_max", "dt_init_floor")
NOTE = "config.json is one of the mamba_ssm package: read as a {} model"


def is_mamba_ssm(config: Mapping[str, Any]) -> bool:
    """Whether ``config`` is one of the mamba_ssm package."""
    return "model_type" not in config and all(mark in config for mark in MARKS)


def transformers_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """The same model as a transformers config of model_type mamba or mamba2.

    CheckpointError: a malformed field. UnsupportedError: another mixer, attention or MLP layers, an unknown field.
    """
    fields = HfConfig(config)
    mixer = HfConfig(fields.object("ssm_cfg", {}), where="config.json: ssm_cfg")
    kind = mixer.expect("layer", ("Mamba1", "Mamba2"), "Mamba1")
    fields.expect("attn_layer_idx", ([],), [])
    fields.expect("d_intermediate", (0,), 0)
    fields.expect("rms_norm", (True,), True)
    fields.ignore("attn_cfg", *IMPLEMENTATION)
    vocab, multiple = fields.positive("vocab_size"), fields.positive("pad_vocab_size_multiple", default=8)
    result = {
        "model_type": "mamba" if kind == "Mamba1" else "mamba2",
        "hidden_size": fields.positive("d_model"),
        "num_hidden_layers": fields.positive("n_layer"),
        "vocab_size": -(-vocab // multiple) * multiple,
        "layer_norm_epsilon": 1e-5,
        "residual_in_fp32": fields.flag("residual_in_fp32", default=True),
        "tie_word_embeddings": fields.flag("tie_embeddings", default=True),
    }
    result |= _mamba1(mixer) if kind == "Mamba1" else _mamba2(mixer, result["hidden_size"])
    for read in (fields, mixer):
        read.finish()
    return result


def _mamba1(mixer: HfConfig) -> dict[str, Any]:
    mixer.ignore(*MAMBA1_IMPLEMENTATION)
    rank = mixer.raw("dt_rank", "auto")
    return {
        "state_size": mixer.positive("d_state", default=16),
        "conv_kernel": mixer.positive("d_conv", default=4),
        "expand": mixer.positive("expand", default=2),
        "time_step_rank": rank if rank == "auto" else mixer.positive("dt_rank"),
        "use_bias": mixer.flag("bias", default=False),
        "use_conv_bias": mixer.flag("conv_bias", default=True),
    }


def _mamba2(mixer: HfConfig, hidden_size: int) -> dict[str, Any]:
    expand, head_dim = mixer.positive("expand", default=2), mixer.positive("headdim", default=64)
    mixer.expect("d_ssm", (None, expand * hidden_size), None)
    mixer.expect("D_has_hdim", (False,), False)
    mixer.expect("rmsnorm", (True,), True)
    mixer.expect("norm_before_gate", (False,), False)
    mixer.ignore(*MIXER_IMPLEMENTATION)
    low, high = mixer.interval("dt_limit", default=(0.0, float("inf")))
    if expand * hidden_size % head_dim:
        raise CheckpointError(
            f"config.json: ssm_cfg: headdim: expected a divisor of expand x d_model {expand * hidden_size}, "
            f"found {head_dim}: the config is damaged"
        )
    return {
        "state_size": mixer.positive("d_state", default=128),
        "conv_kernel": mixer.positive("d_conv", default=4),
        "expand": expand,
        "head_dim": head_dim,
        "num_heads": expand * hidden_size // head_dim,
        "n_groups": mixer.positive("ngroups", default=1),
        "time_step_limit": [low, high],
        "use_bias": mixer.flag("bias", default=False),
        "use_conv_bias": mixer.flag("conv_bias", default=True),
        "chunk_size": mixer.positive("chunk_size", default=256),
    }
