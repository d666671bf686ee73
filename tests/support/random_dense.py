"""Random configurations of families without a recurrence: every kind of value that their configs can express."""

from __future__ import annotations

from random import Random
from typing import Any

DENSE = ("gemma3_text", "lfm3", "olmo3", "phi3")
_ACTIVATIONS = ("silu", "gelu", "gelu_pytorch_tanh", "relu", "relu2")
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
    if family == "phi3":
        return _phi3(random)
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
