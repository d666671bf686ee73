"""Quantisation settings of published checkpoints, from their hf_quant_config.json or quantization_config.

Omitted: producers, and all but one module of each kind in the quantized_layers of MIXED_PRECISION. The others are in
the format of the module of the same name in another layer or expert.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

_MAMBA_30B = (0, 2, 4, 7, 9, 11, 14, 16, 18, 21, 23, 25, 28, 30, 32, 35, 37, 39, 41, 44, 46, 48, 50)
_EXPERTS_30B = (1, 3, 6, 8, 10, 13, 15, 17, 20, 22, 24, 27, 29, 31, 34, 36, 38, 40, 43, 45, 47, 49, 51)
_ATTENTION_30B = (5, 12, 19, 26, 33, 42)
_QKVO = ("q_proj", "k_proj", "v_proj", "o_proj")
_NVFP4 = {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8"}
_W4A16_NVFP4 = {"quant_algo": "W4A16_NVFP4", "group_size": 16}


def _of_layers(layer: str, numbers: Iterable[int], modules: Iterable[str]) -> list[str]:
    return [f"{layer.format(number)}.{module}" for number in numbers for module in modules]


_MIXER = "backbone.layers.{}.mixer"
# name -> hf_quant_config.json.
MODELOPT: Mapping[str, dict[str, Any]] = {
    "NVIDIA-Nemotron-3-Nano-30B-A3B-NVFP4": {
        "quantization": {
            **_NVFP4,
            "group_size": 16,
            "exclude_modules": [
                "lm_head",
                *_of_layers(_MIXER, (number - 1 for number in _ATTENTION_30B), ("in_proj", "out_proj")),
                *_of_layers(_MIXER, _ATTENTION_30B, _QKVO),
                *_of_layers(_MIXER, _MAMBA_30B, ("conv1d",)),
            ],
        }
    },
    "NVIDIA-Nemotron-3-Super-120B-A12B-FP8": {"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}},
    "NVIDIA-Nemotron-3-Super-120B-A12B-NVFP4": {"quantization": dict(_NVFP4)},
    "NVIDIA-Nemotron-3.5-Lightning-30B-A3B-NVFP4": {
        "quantization": {
            "quant_algo": "MIXED_PRECISION",
            "kv_cache_quant_algo": "FP8",
            "quantized_layers": {
                "backbone.layers.0.mixer.in_proj": {"quant_algo": "FP8"},
                "backbone.layers.0.mixer.out_proj": {"quant_algo": "FP8"},
                "backbone.layers.1.mixer.experts.0.down_proj": _W4A16_NVFP4,
                "backbone.layers.1.mixer.experts.0.up_proj": _W4A16_NVFP4,
            },
            "exclude_modules": [
                "backbone.embeddings",
                *_of_layers(_MIXER, _MAMBA_30B, ("conv1d",)),
                *_of_layers(_MIXER, _EXPERTS_30B, ("gate",)),
                *_of_layers(_MIXER, _ATTENTION_30B, _QKVO),
                "mtp*",
            ],
        }
    },
    "MiniMax-M2.7-NVFP4": {
        "quantization": {
            **_NVFP4,
            "group_size": 16,
            "exclude_modules": [
                "lm_head",
                *_of_layers("model.layers.{}", range(62), ("block_sparse_moe.gate", "self_attn*")),
            ],
        }
    },
    "MiniMax-M3-NVFP4": {
        "quantization": {
            "quant_algo": "MIXED_PRECISION",
            "kv_cache_quant_algo": None,
            "quant_method": "modelopt",
            "exclude_modules": [
                *("lm_head", "model.embed_tokens", "vision_tower", "multi_modal_projector", "patch_merge_mlp"),
                *_of_layers("language_model.model.layers.{}", range(3, 60), ("block_sparse_moe.gate",)),
            ],
            "quantized_layers": {"language_model.model.layers.0.self_attn.q_proj": {"quant_algo": "MXFP8"}},
        }
    },
}
# The quantization_config of MiniMax-M2.7.
MINIMAX_M2_FP8: Mapping[str, Any] = {
    "activation_scheme": "dynamic",
    "fmt": "float8_e4m3fn",
    "quant_method": "fp8",
    "weight_block_size": [128, 128],
    "modules_to_not_convert": ["gate", "e_score_correction_bias", "lm_head"],
}
