"""What only zaya's config and checkpoint can say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from hybridge.artifact.errors import CheckpointError, HybridgeError, UnsupportedError
from hybridge.exporter.families.attention_config import ConvolutionalAttentionConfig
from hybridge.exporter.families.parameters import declared
from hybridge.exporter.families.registry import decoder_config
from hybridge.verification.reference import Reference
from tests.support.agreement import assert_one_shot_agrees
from tests.support.checkpoint_edits import edit_tensors
from tests.support.tiny_models import BASE_CONFIGS, save_tiny_model
from tools.published_configs import PUBLISHED


def parsed(**fields: Any) -> Any:
    return decoder_config({"model_type": "zaya", **BASE_CONFIGS["zaya"], **fields})


@pytest.mark.parametrize(
    ("fields", "named", "error"),
    [
        ({"lm_head_bias": True}, "lm_head_bias", UnsupportedError),
        ({"num_experts_per_tok": 2}, "num_experts_per_tok", UnsupportedError),
        ({"sliding_window": None}, "sliding_window", CheckpointError),
        ({"layer_types": ["hybrid"]}, "layer_types", CheckpointError),
        ({"head_dim": 5, "num_key_value_heads": 1}, "head_dim", CheckpointError),
        ({"rope_parameters": {"rope_theta": 5e6}}, "rope_parameters", CheckpointError),
        ({"rope_parameters": {"hybrid": {"rope_type": "yarn"}, "hybrid_sliding": {}}}, "rope_type", UnsupportedError),
        ({"rope_parameters": {"hybrid": {}, "hybrid_sliding": {}}}, "rope_theta", UnsupportedError),
    ],
    ids=str,
)
def test_other_values_are_refused(fields: dict[str, Any], named: str, error: type[HybridgeError]) -> None:
    with pytest.raises(error, match=named):
        parsed(**fields)


def test_a_rope_type_beside_the_kinds_changes_nothing() -> None:
    """Published configs have one, and transformers drops it."""
    ropes = BASE_CONFIGS["zaya"]["rope_parameters"]
    assert parsed(rope_parameters={**ropes, "rope_type": "default"}) == parsed()


def test_the_last_bias_of_a_router_is_the_one_that_is_stored(tmp_path: Path) -> None:
    folder = save_tiny_model(tmp_path, "zaya", num_hidden_layers=1, layer_types=None)
    skipping = {"model.layers.0.mlp.gate.balancing_biases": torch.tensor([0.0] * 5 + [9.0])}
    edit_tensors(folder, lambda tensors: tensors.update(skipping))
    ours = assert_one_shot_agrees(folder)
    assert Reference(folder, ours.config).notes == (
        "transformers changes the biases of 1 routers when it loads them; the reference does not",
    )


def test_the_tensors_of_a_published_checkpoint() -> None:
    decoder = decoder_config(PUBLISHED["ZAYA1-8B"])
    names = {p.source: p.shape for p in declared(decoder, "model.", {})}
    assert names["model.layers.39.self_attn.qkv_proj.conv_qk_grouped.weight"] == (1280, 128, 2)
    assert names["model.layers.39.mlp.gate.router_states_scale"] == (256,)
    assert "model.layers.0.mlp.gate.router_states_scale" not in names
    body = decoder.layers[0].bodies[0]
    assert isinstance(body, ConvolutionalAttentionConfig)
    # 2 x 1280 channels of queries and keys, 128 of delayed values; three tokens of each.
    assert body.recurrent.state_shapes == ((2688, 3),)
