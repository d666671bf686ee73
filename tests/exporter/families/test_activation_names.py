"""The activations of MLPs and experts against those of transformers with the same name."""

from __future__ import annotations

import pytest
import torch
from transformers.activations import ACT2FN

from hybridge.exporter.families.activation_names import ACTIVATIONS, expert_activation_of
from hybridge.exporter.families.hf_config import HfConfig
from hybridge.exporter.layers.mlp import ACTIVATIONS as OURS
from hybridge.trt_plugins.reference.routed_experts import expert_activation
from hybridge.trt_plugins.specs.routed_experts import ExpertActivation

X = torch.linspace(-9.0, 9.0, 1801, dtype=torch.float64)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_each_is_that_of_transformers(name: str) -> None:
    expected = ACT2FN[name](X)
    torch.testing.assert_close(OURS[ACTIVATIONS[name]](X), expected, rtol=0, atol=1e-8)
    if name not in ("sigmoid", "tanh"):
        fields = expert_activation_of(HfConfig({"hidden_act": name}))
        form = ExpertActivation(fields["activation"], False, fields.get("alpha", 1.0))
        torch.testing.assert_close(expert_activation(X, form), expected, rtol=0, atol=1e-8)
