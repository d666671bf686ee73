"""mtp.onnx against the published architecture in float64, of transformers' own layers where it has them.

transformers drops the tensors of a head when it loads a checkpoint. A head's layers are layers of the family, which
transformers has; what is around them is written out here.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM

from hybridge.artifact.config import MTP_CONFIG_FILE, MTP_MODEL_FILE, config_from_json
from hybridge.artifact.errors import CheckpointError
from hybridge.artifact.json_fields import load_json_object
from hybridge.artifact.manifest import read_manifest
from hybridge.artifact.names import HIDDEN_STATES, IS_OWN, LOGITS, kv_pool, layer_output
from hybridge.exporter.export import export_checkpoint
from hybridge.exporter.options import ExportOptions
from hybridge.exporter.plan import plan_export
from hybridge.inspection import inspect_path
from hybridge.runtime.engines.hidden_rows import ArrayRows
from hybridge.runtime.engines.mtp_head import HeadInputs
from hybridge.runtime.engines.onnxruntime.mtp_head import MtpHeadEngine
from hybridge.runtime.engines.onnxruntime.paged_portable import PortablePagedEngine
from hybridge.runtime.engines.packed_inputs import PackedInputs
from hybridge.runtime.engines.pool_sizes import PoolSizes
from hybridge.runtime.engines.torch.hidden_states import TorchRows
from hybridge.runtime.engines.torch.mtp_head import TorchMtpHead
from hybridge.runtime.engines.torch.paged_engine import TorchPagedEngine
from tests.support.artifacts import ArtifactCache, Exported
from tests.support.checkpoint_edits import edit_tensors
from tests.support.effort import sample
from tests.support.mtp_checkpoints import layers_like, mtp_names, save_with_mtp_head
from tests.support.tiny_models import save_tiny_model

FAMILIES: dict[str, dict[str, Any]] = {
    "qwen3_next": {},
    "qwen3_next experts": {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 28,
                           "shared_expert_intermediate_size": 20, "decoder_sparse_step": 1},
    "qwen3_5_text": {},
    "qwen3_5_moe_text": {},
    "nemotron_h *E": {"pattern": "*E", "hybrid_override_pattern": "ME*E-", "n_routed_experts": 6,
                      "num_experts_per_tok": 2, "moe_intermediate_size": 28, "moe_shared_expert_intermediate_size": 20},
    "nemotron_h *-": {"pattern": "*-"},
    "nemotron_h -*": {"pattern": "-*", "residual_in_fp32": True},
}  # fmt: skip
BLOCK, HIDDEN = 16, 48


def exported(artifacts: ArtifactCache, case: str, dtype: str = "float32") -> Exported:
    overrides = dict(FAMILIES[case])
    pattern = overrides.pop("pattern", "")
    return artifacts.get(case.split()[0], dtype, overrides, mtp_pattern=pattern, layout="paged", max_seq_len=64)


def _loaded(checkpoint: Path) -> Any:
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float64)
    if hasattr(model, "set_experts_implementation"):
        model.set_experts_implementation("eager")  # the others have no float64
    return model


class Reference:
    """A head in float64: transformers' own layers, with norms and the matrix in front of them written out."""

    def __init__(self, checkpoint: Path, pattern: str, copy: Path) -> None:
        """``copy``: a folder to make for the checkpoint with the head's weights in the model's layers."""
        model = _loaded(checkpoint)
        config = AutoConfig.from_pretrained(checkpoint)
        self.tensors = {name: value.double() for name, value in load_file(checkpoint / "model.safetensors").items()}
        self.model, self.qwen = model, not pattern
        self.eps = config.rms_norm_eps if self.qwen else config.layer_norm_epsilon
        self.names = mtp_names(len(pattern))
        around = set(self.names.values())
        # The same layers with the head's weights, loaded as transformers loads those of the model's own.
        changed = {}
        like = layers_like(self.tensors, pattern)
        for index, prefix in enumerate(like):
            head = f"mtp.layers.{index}."
            own = {n.removeprefix(head) for n in self.tensors if n.startswith(head) and n not in around}
            assert own == {n.removeprefix(prefix) for n in self.tensors if n.startswith(prefix)}
            changed.update({f"{prefix}{name}": f"{head}{name}" for name in own})
        shutil.copytree(checkpoint, copy)
        edit_tensors(copy, lambda t: t.update({name: t[head].clone() for name, head in changed.items()}))
        layers = _loaded(copy).model.layers
        self.layers = [layers[int(prefix.split(".")[-2])] for prefix in like]
        self.embedding, self.target_norm = (
            next(n for n in self.tensors if n.endswith(endings) and not n.startswith("mtp."))
            for endings in (("embed_tokens.weight", "embeddings.weight"), ("model.norm.weight", "norm_f.weight"))
        )

    def norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        weight = self.tensors[name] + (1 if self.qwen else 0)
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * weight

    def run(self, ids: torch.Tensor, hidden: torch.Tensor, own: bool) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits and hidden states of all positions of one sequence; its tokens [n] and hidden states [n, hidden]."""
        normed = self.norm(hidden, self.names["final"] if own else self.target_norm)
        embedded = self.tensors[self.embedding][ids]
        both = torch.cat(
            (self.norm(embedded, self.names["embedding"]), self.norm(normed, self.names["hidden"])),
            -1,
        )
        x = (both @ self.tensors[self.names["projection"]].T)[None]
        positions = torch.arange(len(ids))[None]
        mask = torch.full((1, 1, len(ids), len(ids)), float("-inf"), dtype=torch.float64).triu(1)
        more = {}
        if self.qwen:
            axes = positions.expand(3, 1, -1) if self.interleaves else positions
            more["position_embeddings"] = self.model.model.rotary_emb(x, axes)
        for layer in self.layers:
            y = layer(x, attention_mask=mask, position_ids=positions, **more)
            x = y[0] if isinstance(y, tuple) else y
        return self.norm(x[0], self.names["final"]) @ self.model.lm_head.weight.T, x[0]

    @property
    def interleaves(self) -> bool:
        """Whether the rotary embedding takes positions of text, height and width."""
        return type(self.model).__name__.startswith("Qwen3_5")


@dataclass(frozen=True, eq=False, kw_only=True)
class GivenStates(PackedInputs):
    """A step of a head with the hidden states themselves."""

    hidden_states: np.ndarray
    is_own: np.ndarray


class PortableHead(PortablePagedEngine):
    """The file as it is, every value of it to be seen."""

    _config_file, _model_file = MTP_CONFIG_FILE, MTP_MODEL_FILE


def arrays_of(ids: torch.Tensor, start: int, own: bool) -> dict[str, np.ndarray]:
    """A step of one row, whose second block comes before its first."""
    count = len(ids)
    return {
        "input_ids": ids.numpy(),
        "positions": np.arange(start, start + count),
        "query_start_loc": np.array([0, count], np.int32),
        "seq_lens": np.array([start + count], np.int32),
        "block_table": np.array([[2, 0]], np.int32),
        "slot_mapping": np.array(
            [(2 if p < BLOCK else 0) * BLOCK + p % BLOCK for p in range(start, start + count)], np.int32
        ),
        "state_indices": np.array([-1], np.int32),
        "logits_indices": np.arange(count, dtype=np.int32),
        "is_own": np.full(count, own, np.int32),
    }


PARTS = ((0, 13), (13, 20), (20, 21))


@pytest.mark.parametrize("case", sample(FAMILIES, on_push=()))
@torch.no_grad()
def test_a_head_is_that_of_the_architecture(case: str, artifacts: ArtifactCache, tmp_path: Path) -> None:
    made = exported(artifacts, case)
    torch.manual_seed(1)
    ids, hidden = torch.randint(0, 97, (21,)), torch.randn(21, HIDDEN, dtype=torch.float64)
    reference = Reference(made.checkpoint, FAMILIES[case].get("pattern", ""), tmp_path / "reference")
    for own in (False, True):
        logits, after = reference.run(ids, hidden, own)
        check_head(made.folder, ids, hidden, own, logits, after)


def check_head(
    artifact: Path, ids: torch.Tensor, hidden: torch.Tensor, own: bool, logits: torch.Tensor, after: torch.Tensor
) -> None:
    """Every engine's head against the logits and hidden states of all positions, in steps of several lengths."""
    portable = PortableHead(artifact)
    portable.allocate_pools(PoolSizes(3, BLOCK, 0))
    portable.fill_pools(0.0)
    name = layer_output(portable.config.num_hidden_layers - 1)
    for begin, end in PARTS:
        given = GivenStates(**arrays_of(ids[begin:end], begin, own), hidden_states=hidden[begin:end].float().numpy())
        found = portable.step_values(given, (name,))
        np.testing.assert_allclose(found[LOGITS], logits[begin:end].numpy(), rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(found[name], after[begin:end].numpy(), rtol=1e-4, atol=1e-4)
    model = TorchPagedEngine(artifact, "cpu")
    rows = ArrayRows(2, 21, HIDDEN), TorchRows(model.device, 2, 21, HIDDEN, model.config.dtype)
    rows[0].array[rows[0].first :] = hidden.float().numpy()
    rows[1].tensor[rows[1].first :][:21] = hidden.float()
    for head, places in zip((MtpHeadEngine(artifact), TorchMtpHead(artifact, model)), rows, strict=True):
        head.allocate_pools(PoolSizes(3, BLOCK, 0))
        head.fill_pools(np.nan)
        head.read_from(places)
        for begin, end in PARTS:
            step = {**arrays_of(ids[begin:end], begin, own), "logits_indices": np.array([end - begin - 1], np.int32)}
            states = np.arange(places.first + begin, places.first + end)
            inputs = HeadInputs(**step, hidden_slots=states, own_slots=np.array([2]), further=np.zeros(1, np.int32))
            assert head.run(inputs) == [[int(logits[end - 1].argmax())]]
            np.testing.assert_allclose(places.read([2])[0], after[end - 1].numpy(), rtol=1e-4, atol=1e-4)


def test_weights_are_those_of_the_model_by_reference(artifacts: ArtifactCache) -> None:
    artifact = exported(artifacts, "qwen3_next", "bfloat16").folder
    model, head = (
        onnx.load(artifact / name, load_external_data=False).graph for name in ("model.onnx", MTP_MODEL_FILE)
    )
    places = [
        {t.name: tuple((e.key, e.value) for e in t.external_data) for t in graph.initializer if t.external_data}
        for graph in (model, head)
    ]
    shared = set(places[0]) & set(places[1])
    assert {"model.embed_tokens.weight", "model.norm.weight", "lm_head.weight", "rotary.inv_freq"} <= shared
    assert all(places[0][name] == places[1][name] for name in shared)
    assert not [t.name for t in head.initializer if not t.external_data and not t.name.startswith("trt_edgellm")]
    config = config_from_json(load_json_object(artifact / MTP_CONFIG_FILE))
    assert config.layer_types == ("attention",) and config.bindings.states[0].name == kv_pool(0)
    inputs = {value.name: value.type.tensor_type.elem_type for value in head.input}
    assert inputs[HIDDEN_STATES] == onnx.TensorProto.BFLOAT16 and inputs[IS_OWN] == onnx.TensorProto.INT32


def assert_left_out(checkpoint: Path, reason: str) -> None:
    plan = plan_export(checkpoint, ExportOptions(layout="paged"))
    notes = plan.notes
    assert plan.mtp is None and plan.to_json()["mtp_layers"] is None
    assert any("prediction head is left out: " in note and reason in note for note in notes)


def test_heads_that_are_not_exported(tmp_path: Path) -> None:
    other = save_tiny_model(tmp_path / "other", "nemotron_h")
    edit_tensors(other, lambda t: t.update({"mtp.layers.0.norm.weight": torch.ones(48)}))
    assert_left_out(other, "expected one multi-token prediction head")
    edit_tensors(other, lambda t: t.update({"mtp.layers.0.eh_proj.weight": torch.ones(48, 96)}))
    assert_left_out(other, "found another mixer in layer 0")
    edit_tensors(other, lambda t: t.update({"mtp.layers.0.mixer.gate.weight": torch.ones(4, 48)}))
    assert_left_out(other, "found MoeConfig that it has not")
    edit_tensors(other, lambda t: t.pop("mtp.layers.0.mixer.gate.weight"))
    export_checkpoint(other, tmp_path / "a", ExportOptions(layout="paged"))
    recurrent = save_tiny_model(tmp_path / "recurrent", "qwen3_next", layer_types=["linear_attention"] * 4)
    edit_tensors(recurrent, lambda t: t.update({"mtp.fc.weight": torch.ones(48, 96)}))
    assert_left_out(recurrent, "found AttentionConfig that it has not")
    assert not [name for name in (MTP_MODEL_FILE, MTP_CONFIG_FILE) if (tmp_path / "a" / name).exists()]
    assert inspect_path(tmp_path / "a").to_json()["mtp_layers"] is None


def test_a_head_is_written_with_every_paged_graph(artifacts: ArtifactCache) -> None:
    made = exported(artifacts, "nemotron_h *-")
    assert {record.path for record in read_manifest(made.folder).files} >= {MTP_MODEL_FILE, MTP_CONFIG_FILE}
    assert inspect_path(made.folder).to_json()["mtp_layers"] == ("attention", "mlp")
    assert plan_export(made.checkpoint, ExportOptions(layout="paged")).to_json()["mtp_layers"] == ["attention", "mlp"]


@pytest.mark.parametrize("options", [{"layout": "paged", "mtp": False}, {"layout": "dense"}])
def test_no_head_is_planned_if_not_requested_or_in_the_dense_layout(
    options: dict[str, Any], artifacts: ArtifactCache
) -> None:
    plan = plan_export(exported(artifacts, "nemotron_h *-").checkpoint, ExportOptions(**options))
    assert plan.mtp is None and plan.to_json()["mtp_layers"] is None


def test_a_damaged_head_is_refused_and_may_be_left_out(tmp_path: Path) -> None:
    checkpoint = save_with_mtp_head(tmp_path / "checkpoint", "qwen3_next")
    edit_tensors(checkpoint, lambda t: t.update({"mtp.fc.weight": torch.ones(48, 95)}))
    with pytest.raises(CheckpointError, match=r"mtp.fc.weight: expected shape .* `mtp=False` leaves the multi-token"):
        plan_export(checkpoint, ExportOptions(layout="paged"))
    assert plan_export(checkpoint, ExportOptions(layout="paged", mtp=False)).mtp is None
