"""Random configurations of families without a recurrence: every kind of value that their configs can express."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from tests.support.tiny_configs.near_llama import NEAR_LLAMA, NEAR_LLAMA_CONFIGS, switches

# Of a family near Llama's layout: the switches of its config.
_SWITCHES: dict[str, tuple[str, ...]] = {
    "arcee": ("attention_bias", "mlp_bias"),
    "cwm": ("mlp_bias",),
    "ernie4_5": ("use_bias",),
    "exaone4": (),
    "glm4": ("attention_bias",),
    "granite": ("attention_bias", "mlp_bias"),
    "internlm3": (),
    "llama": ("attention_bias", "mlp_bias"),
    "ministral": (),
    "mistral": (),
    "mixtral": (),
    "olmo2": ("attention_bias",),
    "qwen2": (),
    "qwen3": ("attention_bias",),
    "qwen3_moe": ("attention_bias", "norm_topk_prob"),
    "seed_oss": ("attention_bias", "attention_out_bias", "mlp_bias"),
    "smollm3": ("attention_bias", "mlp_bias"),
    **{family: switches(family) for family in NEAR_LLAMA},
}
DENSE = ("gemma3_text", "lfm3", "olmo3", "phi3", "gpt_oss", *_SWITCHES)
_ACTIVATIONS = ("silu", "gelu", "gelu_pytorch_tanh", "relu", "relu2", "gelu_new", "quick_gelu")
_OF_MLPS = ("sigmoid", "tanh")
_ROPES: tuple[dict[str, Any], ...] = (
    {"rope_type": "default"},
    {"rope_type": "linear", "factor": 2.5},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
    {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    },
)


def random_dense(random: Random, family: str) -> dict[str, Any]:
    """Overrides of the family's tiny config."""
    if family in _SWITCHES:
        return _like_llama(random, family)
    if family in ("phi3", "gpt_oss"):
        return _phi3(random) if family == "phi3" else _gpt_oss(random)
    layers = random.randint(1, 4)
    kinds = ["sliding_attention", "full_attention", *(["conv"] * 2 if family == "lfm3" else [])]
    ropes = {
        kind: {"rope_theta": random.choice((50.0, 1e4)), **random.choice(_ROPES)}
        for kind in ("sliding_attention", "full_attention")
    }
    fields: dict[str, Any] = {
        "num_hidden_layers": layers,
        "layer_types": random.choices(kinds, k=layers),
        "sliding_window": random.choice((1, 2, 5, 17, 40)),
        "intermediate_size": random.choice((20, 52)),
        "attention_bias": random.random() < 0.5,
        "rope_parameters": ropes,
    }
    if family != "olmo3":
        fields["head_dim"] = random.choice((8, 14, 16, 24))
    if family == "lfm3":
        part = {
            "rope_theta": 70.0,
            "rope_type": "proportional",
            "partial_rotary_factor": random.choice((0.25, 0.5, 1.0)),
        }
        ropes["full_attention"] = random.choice((ropes["full_attention"], part))
        gates = {name: random.random() < 0.5 for name in ("use_attention_gate", "use_sandwich_norm", "conv_bias")}
        return fields | gates | {"conv_L_cache": random.randint(2, 8)}
    if family == "olmo3":
        return fields | {"hidden_act": random.choice(_ACTIVATIONS)}
    return fields | {
        "hidden_activation": random.choice(_ACTIVATIONS),
        "query_pre_attn_scalar": random.choice((7, 24, 256)),
        "final_logit_softcapping": random.choice((None, 1.5, 30.0)),
    }


def _like_llama(random: Random, family: str) -> dict[str, Any]:
    layers = random.randint(1, 4)
    activations = _ACTIVATIONS if family in ("mixtral", "qwen3_moe") else (*_ACTIVATIONS, *_OF_MLPS)
    return {
        "num_hidden_layers": layers,
        "head_dim": random.choice((8, 14, 16, 24)),
        "intermediate_size": random.choice((20, 52)),
        "hidden_act": random.choice(activations),
        "rms_norm_eps": random.choice((1e-6, 1e-5, 0.05)),
        "rope_parameters": {"rope_theta": random.choice((50.0, 1e4)), **random.choice(_ROPES)},
        **{switch: random.random() < 0.5 for switch in _SWITCHES[family]},
        **(_OWN[family](random, layers) if family in _OWN else {}),
    }


def _granite(random: Random, _layers: int) -> dict[str, Any]:
    names = ("embedding_multiplier", "residual_multiplier", "logits_scaling", "attention_multiplier")
    return {name: random.choice((0.3, 1.0, 2.5)) for name in names}


def _cwm(random: Random, layers: int) -> dict[str, Any]:
    kinds = random.choices(("sliding_attention", "full_attention"), k=layers)
    return {"sliding_window": random.choice((1, 5, 17)), "layer_types": random.choice((None, kinds))}


def _exaone(random: Random, layers: int) -> dict[str, Any]:
    return {**_cwm(random, layers), "sliding_window_pattern": random.randint(1, 4)}


def _near(family: str) -> Callable[[Random, int], dict[str, Any]]:
    """Of NEAR_LLAMA: heads of which half may be rotated, and windows where the config has them."""
    has_windows = "sliding_window" in NEAR_LLAMA_CONFIGS[family]
    return lambda random, layers: _glm(random, layers) | (_cwm(random, layers) if has_windows else {})


def _glm(random: Random, _layers: int) -> dict[str, Any]:
    return {"head_dim": random.choice((8, 16, 20, 24))}  # half of it is rotated


def _mistral(random: Random, _layers: int) -> dict[str, Any]:
    return {"sliding_window": random.choice((None, 1, 5, 17))}


def _mixtral(random: Random, layers: int) -> dict[str, Any]:
    experts = random.randint(2, 9)
    chosen = {"num_local_experts": experts, "num_experts_per_tok": random.randint(1, experts)}
    return {**_mistral(random, layers), **chosen}


def _qwen(random: Random, layers: int) -> dict[str, Any]:
    return {
        "use_sliding_window": random.random() < 0.7,
        "sliding_window": random.choice((1, 5, 17)),
        "max_window_layers": random.randint(0, layers),
    }


def _qwen_moe(random: Random, layers: int) -> dict[str, Any]:
    experts = random.randint(2, 9)
    return {
        "use_sliding_window": random.random() < 0.5,
        "sliding_window": random.choice((1, 5, 17)),
        "num_experts": experts,
        "num_experts_per_tok": random.randint(1, experts),
        "moe_intermediate_size": random.choice((12, 28)),
        "decoder_sparse_step": random.randint(1, 2),
        "mlp_only_layers": [index for index in range(layers) if random.random() < 0.3],
    }


def _smollm(random: Random, layers: int) -> dict[str, Any]:
    fields: dict[str, Any] = {"no_rope_layer_interval": random.randint(1, 4)}
    if random.random() < 0.5:
        fields["no_rope_layers"] = random.choices((0, 1), k=layers)
    if random.random() < 0.5:
        fields |= {"use_sliding_window": True, "sliding_window": random.choice((1, 5, 17))}
        fields["layer_types"] = random.choices(("sliding_attention", "full_attention"), k=layers)
    return fields


def _gpt_oss(random: Random) -> dict[str, Any]:
    layers, experts = random.randint(1, 4), random.randint(1, 9)
    return {
        "num_hidden_layers": layers,
        "layer_types": random.choice((None, random.choices(("sliding_attention", "full_attention"), k=layers))),
        "sliding_window": random.choice((1, 2, 5, 17, 40)),
        "head_dim": random.choice((8, 14, 16, 24)),
        "intermediate_size": random.choice((20, 52)),
        "attention_bias": random.random() < 0.5,
        "num_local_experts": experts,
        "num_experts_per_tok": random.randint(1, experts),
        "swiglu_alpha": random.choice((1.702, 0.5, 1.0)),
        "swiglu_limit": random.choice((7.0, 0.3, 0.05)),
        "rms_norm_eps": random.choice((1e-6, 1e-5, 0.05)),
        "rope_parameters": {"rope_theta": random.choice((50.0, 1.5e5)), **random.choice(_ROPES)},
    }


_OWN: dict[str, Callable[[Random, int], dict[str, Any]]] = {
    "cwm": _cwm,
    "exaone4": _exaone,
    "glm4": _glm,
    "granite": _granite,
    "ministral": _cwm,
    "mistral": _mistral,
    "mixtral": _mixtral,
    "qwen2": _qwen,
    "qwen3": _qwen,
    "qwen3_moe": _qwen_moe,
    "smollm3": _smollm,
    **{family: _near(family) for family in NEAR_LLAMA},
}


def _phi3(random: Random) -> dict[str, Any]:
    head_dim, part = random.choice((8, 16, 24)), random.choice((0.5, 0.75, 1.0))
    angles = int(head_dim * part) // 2
    rope: dict[str, Any] = {"rope_type": "default"}
    if random.random() < 0.7:
        factors = {name: [random.uniform(1, 9) for _ in range(angles)] for name in ("short_factor", "long_factor")}
        rope = {"rope_type": "longrope", **factors, **random.choice(({}, {"factor": 4.0}, {"attention_factor": 1.2}))}
    return {
        "head_dim": head_dim,
        "num_hidden_layers": random.randint(1, 4),
        "sliding_window": random.choice((None, 1, 5, 17)),
        "intermediate_size": random.choice((20, 52)),
        "hidden_act": random.choice(_ACTIVATIONS),
        "rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": part, **rope},
        "original_max_position_embeddings": random.choice((16, 40, 64)),
    }
