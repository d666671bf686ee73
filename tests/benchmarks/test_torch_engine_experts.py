"""The benchmark of the torch engine on a model with experts, on the CPU and on small sizes."""

from __future__ import annotations

from functools import wraps
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest

pytest.importorskip("transformers", reason="the peer is transformers")

from benchmarks.peer import Peer
from benchmarks.torch_engine import QWEN3_NEXT, ExpertsSettings, write_experts_checkpoint
from tests.benchmarks.measured import correct

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
        model={**QWEN3_NEXT, **SMALL},
        device="cpu",
        new_tokens=3,
        prompt_tokens=5,
        gate_tokens=9,
        gate_steps=4,
        repeats=1,
        batches=(1, 2),
        prompts=(7, 16),
    )
    document = correct("torch_engine_experts", settings)
    assert "transformers in float32" in document["gates"][0]["checks"]
    rates = document["results"]["decode_tokens_per_s"]
    assert set(rates) == {"1", "2"} and set(document["results"]["prompt_ms"]) == {"7", "16"}
    (target,) = document["targets"]
    expected = rates["1"]["ours_greedy"]["median"] / rates["1"]["transformers_greedy"]["median"]
    assert target["value"] == pytest.approx(expected) and document["settings"]["model"]["num_experts"] == 8


def test_values_are_of_transformers_own_functions_and_times_of_the_package_in_their_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers.models.qwen3_next import modeling_qwen3_next as module

    write_experts_checkpoint(tmp_path, {**QWEN3_NEXT, **SMALL}, "cpu")
    peer, tokens = Peer(tmp_path), np.arange(9)
    expected = peer.logits(tokens)

    @wraps(module.torch_chunk_gated_delta_rule.__wrapped__)
    def package(*_arguments: object, **_options: object) -> NoReturn:
        raise RuntimeError("the package ran")

    monkeypatch.setattr(module, "torch_chunk_gated_delta_rule", package)
    np.testing.assert_array_equal(peer.logits(tokens), expected)
    with pytest.raises(RuntimeError, match="the package ran"):
        peer.prefill_seconds(tokens[None])
