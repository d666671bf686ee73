"""The activations of MLPs and experts, by the names that transformers has for them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from hybridge.exporter.families.hf_config import HfConfig

# transformers' name -> ours; those that compute the same in another way share one.
ACTIVATIONS: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(("silu", "swish"), "silu"),
        **dict.fromkeys(("gelu", "gelu_python"), "gelu"),
        **dict.fromkeys(
            ("gelu_pytorch_tanh", "gelu_new", "gelu_fast", "gelu_python_tanh", "gelu_accurate"), "gelu_pytorch_tanh"
        ),
        **{name: name for name in ("relu", "relu2", "quick_gelu", "sigmoid", "tanh")},
    }
)
# x * sigmoid(alpha * x).
QUICK_GELU_ALPHA = 1.702
# The operator of experts has only these.
_OF_MLPS = ("sigmoid", "tanh")


def activation_of(config: HfConfig, name: str = "hidden_act", default: str = "silu") -> str:
    """The activation of an MLP."""
    return ACTIVATIONS[config.expect(name, ACTIVATIONS, default)]


def expert_activation_of(config: HfConfig, name: str = "hidden_act", default: str = "silu") -> dict[str, Any]:
    """The fields ``activation`` and ``alpha`` of a MoeConfig."""
    supported = [known for known, ours in ACTIVATIONS.items() if ours not in _OF_MLPS]
    activation = ACTIVATIONS[config.expect(name, supported, default)]
    if activation == "quick_gelu":
        return {"activation": "silu", "alpha": QUICK_GELU_ALPHA}
    return {"activation": activation}
