"""The benchmark of the torch engine on a model with experts, on the CPU and on small sizes."""

from __future__ import annotations

import pytest

pytest.importorskip("transformers", reason="the peer is transformers")

from benchmarks import torch_engine_experts
from benchmarks.torch_engine_experts import FIELDS, ExpertsSettings

SMALL = {
    "vocab_size": 128,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "layer_types": ["linear_attention", "full_attention"],
    "intermediate_size": 64,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "linear_num_key_heads": 1,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
}


def test_it_measures_both_and_their_ratio() -> None:
    settings = ExpertsSettings(
        fields={**FIELDS, **SMALL},
        device="cpu",
        new_tokens=3,
        prompt_tokens=5,
        gate_tokens=9,
        gate_steps=4,
        repeats=1,
        batches=(1, 2),
        prompts=(7, 16),
    )
    document = torch_engine_experts.run(settings).to_json()
    assert document["correct"] and "transformers in float32" in document["gates"][0]["checks"]
    rates = document["results"]["decode_tokens_per_s"]
    assert set(rates) == {"1", "2"} and set(document["results"]["prompt_ms"]) == {"7", "16"}
    (target,) = document["targets"]
    expected = rates["1"]["ours_greedy"]["median"] / rates["1"]["transformers_greedy"]["median"]
    assert target["value"] == pytest.approx(expected) and document["settings"]["fields"]["num_experts"] == 8
