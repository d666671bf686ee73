"""The reference holds weights as they are stored and still is transformers in float32."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from hybridge.artifact.config import RuntimeConfig
from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import CheckpointError
from hybridge.verification.reference import Reference
from hybridge.verification.reference_weights import stored_types
from tests.support.checkpoint_edits import edit_config, edit_tensors
from tests.support.eager_decoder import EagerDecoder
from tests.support.tiny_models import BASE_CONFIGS, save_tiny_model
from tests.support.versions import skip_ungrouped_norms

# Sums in another order: the reference computes Mamba2 layers in shorter chunks.
TOLERANCE = 3e-6


def config_of_broken(checkpoint: Path) -> RuntimeConfig:
    """As much of a runtime config as the reference reads before it fails."""
    raw = json.loads((checkpoint / "config.json").read_text())
    sizes = {name: raw[name] for name in ("model_type", "hidden_size", "num_hidden_layers", "vocab_size")}
    made = SimpleNamespace(
        **sizes, attention_layer_indices=(), recurrent_layer_indices=(), has_kv_scales=False, max_seq_len=64
    )
    return cast(RuntimeConfig, made)


def assert_is_transformers_in_float32(checkpoint: Path) -> None:
    tokens = np.random.default_rng(0).integers(0, 97, 70)
    plain = cast(Any, AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)).eval()
    with torch.no_grad():
        expected = plain(torch.from_numpy(tokens)[None]).logits[0].numpy()
    found = Reference(checkpoint, EagerDecoder(checkpoint).config).run(tokens).logits
    assert found.dtype == np.float32
    assert np.linalg.norm(found - expected) < TOLERANCE * np.linalg.norm(expected)


# nemotron_h clamps dt otherwise; minimax reads decays that the checkpoint has in 16 bits.
@pytest.mark.parametrize("family", [name for name in BASE_CONFIGS if name not in ("minimax", "nemotron_h")])
def test_narrow_weights_give_the_logits_of_transformers_in_float32(family: str, tmp_path: Path) -> None:
    skip_ungrouped_norms(family)
    assert_is_transformers_in_float32(save_tiny_model(tmp_path, family, dtype="bfloat16"))


def test_kernels_of_installed_packages_are_not_called_on_the_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub_kernels = pytest.importorskip("transformers.integrations.hub_kernels")
    decorator = getattr(hub_kernels, "use_kernel_func_from_hub_with_fallback", None)
    if decorator is None:
        pytest.skip("this transformers asks for the device before it calls a package")

    def refuse(x: torch.Tensor, *_: object, **__: object) -> None:
        raise RuntimeError("expected a tensor on a GPU")

    checkpoint = save_tiny_model(tmp_path, "bamba", dtype="bfloat16")
    modeling = sys.modules["transformers.models.bamba.modeling_bamba"]
    package = SimpleNamespace(causal_conv1d_fn=refuse)
    monkeypatch.setitem(cast(dict[str, Any], sys.modules), "causal_conv1d", package)
    own = modeling.causal_conv1d_fn.__wrapped__
    monkeypatch.setattr(modeling, "causal_conv1d_fn", decorator("causal_conv1d_fn", "causal_conv1d")(own))
    tokens = np.random.default_rng(0).integers(0, 97, 70)
    plain = cast(Any, AutoModelForCausalLM.from_pretrained(checkpoint)).eval()
    with pytest.raises(RuntimeError, match="GPU"):
        plain(torch.from_numpy(tokens)[None])
    assert np.isfinite(Reference(checkpoint, EagerDecoder(checkpoint).config).run(tokens).logits).all()


def test_a_window_without_layer_types_is_of_all_layers(tmp_path: Path) -> None:
    checkpoint = save_tiny_model(tmp_path, "mistral")
    assert Reference(checkpoint, EagerDecoder(checkpoint).config).windows == (9, 9)


def test_a_float32_vector_among_narrow_weights_keeps_its_precision(tmp_path: Path) -> None:
    checkpoint = save_tiny_model(tmp_path, "qwen3_next", dtype="bfloat16")
    odd = torch.linspace(0.1, 0.9, 6, dtype=torch.float64).sin().float()

    def widen(tensors: dict[str, torch.Tensor]) -> None:
        for name in [name for name in tensors if name.endswith((".A_log", ".dt_bias"))]:
            tensors[name] = odd.clone()

    edit_tensors(checkpoint, widen)
    assert stored_types(checkpoint).main is DType.BFLOAT16
    assert stored_types(checkpoint).wide == ("A_log", "dt_bias")
    assert_is_transformers_in_float32(checkpoint)
    # For others in the process, transformers loads as before.
    narrow: Any = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.bfloat16)
    assert {parameter.dtype for parameter in narrow.parameters()} == {torch.bfloat16}


def test_matrices_of_several_types_are_all_stored_in_float32(tmp_path: Path) -> None:
    checkpoint = save_tiny_model(tmp_path, "llama", dtype="bfloat16")
    edit_tensors(checkpoint, lambda tensors: tensors.update({"lm_head.weight": tensors["lm_head.weight"].float() / 3}))
    assert stored_types(checkpoint).main is DType.FLOAT32
    assert_is_transformers_in_float32(checkpoint)


def test_pickled_weights_are_never_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = save_tiny_model(tmp_path, "llama")
    (checkpoint / "model.safetensors").rename(checkpoint / "kept")
    torch.save({}, checkpoint / "pytorch_model.bin")
    monkeypatch.setattr(torch, "load", lambda *_, **__: pytest.fail("unpickled"))
    with pytest.raises(CheckpointError, match=r"expected model.safetensors, found pytorch_model.bin"):
        Reference(checkpoint, config_of_broken(checkpoint))


@pytest.mark.parametrize(
    ("family", "field", "value"),
    [
        ("granitemoehybrid", "embedding_multiplier", None),
        ("mamba2", "time_step_limit", 3),
        ("llama", "rms_norm_eps", "x"),
    ],
)
def test_what_transformers_cannot_run_is_one_sentence(family: str, field: str, value: object, tmp_path: Path) -> None:
    checkpoint = edit_config(save_tiny_model(tmp_path, family), **{field: value})
    with pytest.raises(
        CheckpointError, match=r"transformers [\d.]+ cannot (load|run) it \(\w+: .*\): there is nothing"
    ):
        Reference(checkpoint, config_of_broken(checkpoint)).run(np.arange(3))


def test_a_family_that_transformers_lacks_asks_for_a_newer_one(tmp_path: Path) -> None:
    checkpoint = edit_config(save_tiny_model(tmp_path, "llama"), model_type="llama99")
    expected = r"expected a transformers that has llama99, .* found transformers [\d.]+: install a newer one, which may"
    with pytest.raises(CheckpointError, match=expected):
        Reference(checkpoint, config_of_broken(checkpoint))
