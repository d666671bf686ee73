"""Faults that an export or an engine could have, each as an edit of a good artifact, and the place that each spoils."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tests.support.export_cases import ExportCase
from tests.support.tiny_models import EXPERTS
from tests.verify.damaged_artifact import DamagedArtifact, insert, set_attribute

ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
WINDOW = {"use_sliding_window": True, "sliding_window": 100, "max_window_layers": 1, "tie_word_embeddings": True}
LONG_WINDOW = {**WINDOW, "sliding_window": 4096}
# As published: more than the 49 tokens of a short verification, less than its long prompt.
CHUNK = {"chunk_size": 64, "time_step_limit": [0.02, 0.3]}
LAYERS = {"num_hidden_layers": 2}
DENSE = {"weights": "copy", "max_seq_len": 160}

SOURCES = {
    "llama": ExportCase("llama", "float32", {**LAYERS, "rope_parameters": ROPE}, DENSE),
    "qwen3": ExportCase("qwen3", "float32", {**LAYERS, **WINDOW}, DENSE),
    "nemotron_h": ExportCase(
        "nemotron_h", "float32", {**EXPERTS["nemotron_h"], **CHUNK, "hybrid_override_pattern": "M*EM"}, DENSE
    ),
    "long window": ExportCase("qwen3", "float32", {**LAYERS, **LONG_WINDOW}, {**DENSE, "max_seq_len": 4120}),
    "paged long window": ExportCase(
        "qwen3", "float32", {**LAYERS, **LONG_WINDOW}, {**DENSE, "max_seq_len": 4120, "layout": "paged"}
    ),
    "qwen3_next": ExportCase(
        "qwen3_next", "float32", {**LAYERS, "layer_types": ["linear_attention", "full_attention"]}, DENSE
    ),
    "granite": ExportCase(
        "granitemoehybrid",
        "float32",
        {**LAYERS, "layer_types": ["mamba", "attention"], "position_embedding_type": "rope"},
        DENSE,
    ),
    "paged": ExportCase(
        "nemotron_h", "float32", {**CHUNK, "hybrid_override_pattern": "M*-"}, {**DENSE, "layout": "paged"}
    ),
}


@dataclass(frozen=True)
class Fault:
    """An edit of the artifact ``source``; verify must name ``place``."""

    source: str
    place: str
    edit: Callable[[DamagedArtifact], None] = field(repr=False)


def _weight(source: str, place: str, name: str, index: Any, factor: float = 1.05, add: float = 0.0) -> Fault:
    """A stored value, or some, times ``factor`` and plus ``add``."""

    def change(values: np.ndarray) -> None:
        values[index] = values[index] * factor + add

    return Fault(source, place, lambda artifact: artifact.weight(name, change))


def _swapped(source: str, place: str, name: str, first: slice, second: slice) -> Fault:
    """Two parts of a stored tensor in each other's place."""

    def change(values: np.ndarray) -> None:
        values[first], values[second] = values[second].copy(), values[first].copy()

    return Fault(source, place, lambda artifact: artifact.weight(name, change))


def _attribute(source: str, place: str, op_type: str, layer: int | None, name: str, value: float) -> Fault:
    return Fault(source, place, lambda artifact: set_attribute(artifact.node(op_type, layer=layer), name, value))


def _input(source: str, place: str, op_type: str, output: str, index: int, value: str) -> Fault:
    """A node that reads another value of the graph."""

    def edit(artifact: DamagedArtifact) -> None:
        artifact.node(op_type, output).input[index] = value

    return Fault(source, place, edit)


def _number(source: str, place: str, op_type: str, output: str, index: int, value: Any, dtype: type) -> Fault:
    """A node that reads another constant."""

    def edit(artifact: DamagedArtifact) -> None:
        artifact.node(op_type, output).input[index] = artifact.constant(value, dtype)

    return Fault(source, place, edit)


def _shifted(source: str, place: str, op_type: str, output: str, index: int, dtype: type, by: int = 1) -> Fault:
    """A node that reads an integer input plus ``by``."""

    def edit(artifact: DamagedArtifact) -> None:
        node = artifact.node(op_type, output)
        node.input[index] = artifact.insert(node, "Add", [node.input[index], artifact.constant(by, dtype)])

    return Fault(source, place, edit)


def _norm_epsilon(artifact: DamagedArtifact) -> None:
    set_attribute(artifact.node("RMSNormalization", "rms_norm.0"), "epsilon", 1e-5)


def _causal_mask(artifact: DamagedArtifact) -> None:
    artifact.function_node("attention_step", "LessOrEqual", "lessorequal_41")[1].op_type = "Less"


def _shifted_in_step(output: str) -> Callable[[DamagedArtifact], None]:
    """A node of attention_step that reads its first input plus one."""

    def edit(artifact: DamagedArtifact) -> None:
        op_type = {"min_11": "Min", "greaterorequal_18": "GreaterOrEqual"}[output]
        nodes, node = artifact.function_node("attention_step", op_type, output)
        node.input[0] = insert(nodes, node, "Add", [node.input[0], "constant_7"])

    return edit


def _other_head(artifact: DamagedArtifact) -> None:
    values = np.random.default_rng(0).standard_normal((48, 97)) * 0.1
    artifact.node("MatMul", "logits").input[1] = artifact.constant(values, np.float32)


def _expert_order(artifact: DamagedArtifact) -> None:
    parts = artifact.node("Concat", "backbone.layers.2.mixer.experts.up.rows").input
    parts[1], parts[4] = parts[4], parts[1]


def _declared_window(artifact: DamagedArtifact) -> None:
    artifact.config["kv_layer_configs"][1]["sliding_window"] = None


def _padding(op_type: str, index: int, layer: int) -> Callable[[DamagedArtifact], None]:
    """An operator that takes padding for tokens."""

    def edit(artifact: DamagedArtifact) -> None:
        node = artifact.node(op_type, f"present_{'conv' if op_type == 'causal_conv1d' else 'recurrent'}_state_{layer}")
        tokens = artifact.insert(node, "Shape", ["input_ids"], start=1, end=2)
        tokens = artifact.insert(node, "Cast", [tokens], to=6)
        shape = artifact.insert(node, "Shape", ["context_lengths"])
        node.input[index] = artifact.insert(node, "Expand", [tokens, shape])

    return edit


def _older_chunks_forgotten(artifact: DamagedArtifact) -> None:
    """Mamba2: a chunk reads what the one before it left, but nothing older."""
    nodes, mask = artifact.function_node("update_ssm_state", "GreaterOrEqual", "greaterorequal_100")
    kept = mask.output[0]
    mask.output[0] = "fault.mask"
    after = nodes[next(i for i, n in enumerate(nodes) if kept in n.input)]
    age = insert(nodes, after, "Sub", list(mask.input))
    two = insert(nodes, after, "Constant", [], value_int=2)
    near = insert(nodes, after, "Less", [age, two])
    after = nodes[next(i for i, n in enumerate(nodes) if kept in n.input)]
    made = insert(nodes, after, "And", ["fault.mask", near])
    next(n for n in nodes if made in n.output).output[0] = kept


def _first_state_in_every_chunk(artifact: DamagedArtifact) -> None:
    """Gated delta rule: every chunk reads the state before the first one."""
    artifact.function_node("gated_delta_rule", "MatMul", "matmul_174")[1].input[1] = "reshape_122"


FAULTS: dict[str, Fault] = {
    # Attention.
    "rope base": _weight("llama", "layer 0", "rotary.inv_freq", slice(1, None), 0.9),
    "rope scaling off": _weight("llama", "layer 0", "rotary.inv_freq", slice(2, None), 4.0),
    "position by one": _shifted("llama", "layer 0", "Cast", "val_16.0", 0, np.int64),
    "attention scale": _attribute("llama", "layer 1", "cached_attention", 1, "scale", 0.36),
    "causal mask by one": Fault("llama", "layer 0", _causal_mask),
    "KV offset by one": Fault("llama", "layer 0", _shifted_in_step("min_11")),
    "padding overwrites the last key": Fault("llama", "layer 0", _shifted_in_step("greaterorequal_18")),
    "query heads swapped": _swapped("llama", "layer 1", "1.self_attn.q_proj.weight", slice(0, 8), slice(24, 32)),
    "key heads swapped": _swapped("llama", "layer 1", "1.self_attn.k_proj.weight", slice(0, 8), slice(8, 16)),
    "keys of another layer": _input("llama", "layer 1", "cached_attention", "getitem_7.1", 3, "past_key_0"),
    "window off": _input("qwen3", "layer 1", "cached_attention", "getitem_15.1", 9, "getitem_6.0"),
    "window of half the size": _attribute("qwen3", "layer 1", "attention_step", 1, "sliding_window", 50),
    "window by one": _attribute("qwen3", "layer 1", "attention_step", 1, "sliding_window", 101),
    "long window off": _input("long window", "layer 1", "cached_attention", "getitem_15.1", 9, "getitem_6.0"),
    "long window smaller by one": _attribute("long window", "layer 1", "attention_step", 1, "sliding_window", 4095),
    "long window larger by one": _attribute("long window", "layer 1", "attention_step", 1, "sliding_window", 4097),
    "window not declared": Fault("qwen3", "layer 1", _declared_window),
    "one weight of a query norm": _weight("qwen3", "layer 1", "1.self_attn.q_norm.weight", 3),
    "gate and query swapped": _input("qwen3_next", "layer 1", "Reshape", "flatten_7.1", 0, "getitem_13.1"),
    # Norms, MLPs, residuals, multipliers.
    "one weight of a norm": _weight("llama", "layer 1", "layers.1.input_layernorm.weight", 3),
    "norm epsilon": Fault("llama", "layer 0", _norm_epsilon),
    "norm without its offset": _number("qwen3_next", "layer 1", "Add", "add_9.1", 1, 0.0, np.float32),
    "one weight of the last layer": _weight("llama", "layer 1", "layers.1.mlp.down_proj.weight", (5, 7), 1.5),
    "residual of the wrong block": _input("llama", "layer 1", "Add", "layers.1.output", 0, "layers.0.output"),
    "residual multiplier": _number("granite", "layer 0", "Mul", "to_6.0", 1, 0.71, np.float32),
    "attention multiplier": _attribute("granite", "layer 1", "cached_attention", 1, "scale", 0.25),
    # Recurrent layers.
    "dt bias of one head": _weight("nemotron_h", "layer 3", "layers.3.mixer.dt_bias", 2, 1.0, 0.05),
    "dt limit": _attribute("nemotron_h", "layer 0", "update_ssm_state", 0, "time_step_max", 0.31),
    "A of one head": _weight("nemotron_h", "layer 3", "layers.3.mixer.A", 4, 1.02),
    "sign of A": _weight("nemotron_h", "layer 0", "layers.0.mixer.A", 1, -1.0),
    "D of one head": _weight("nemotron_h", "layer 0", "layers.0.mixer.D", 5),
    "one tap of a convolution": _weight("nemotron_h", "layer 3", "layers.3.mixer.conv1d.weight", (17, 0, 2), 1.2),
    "one bias of a convolution": _weight("nemotron_h", "layer 0", "layers.0.mixer.conv1d.bias", 8, 0.5),
    "padding changes a recurrent state": Fault("nemotron_h", "layer 0", _padding("update_ssm_state", 8, 0)),
    "padding changes a convolution state": Fault("nemotron_h", "layer 3", _padding("causal_conv1d", 4, 1)),
    "Mamba2 chunk edge": Fault("nemotron_h", "layer 0", _older_chunks_forgotten),
    "delta rule chunk edge": Fault("qwen3_next", "layer 0", _first_state_in_every_chunk),
    "decay of one delta head": _weight("qwen3_next", "layer 0", "linear_attn.A", 2, 1.02),
    # Experts.
    "experts in another order": Fault("nemotron_h", "layer 2", _expert_order),
    "router bias": _weight("nemotron_h", "layer 2", "gate.e_score_correction_bias", 3, 1.0, 0.2),
    "shared expert left out": _input("nemotron_h", "layer 2", "Add", "to_9.2", 1, "routed_experts.2"),
    # Embedding and head.
    "one weight of the embedding": _weight("llama", "embedding", "embed_tokens.weight", (41, 3), 1.5),
    "embedding multiplier": _number("granite", "embedding", "Mul", "embeddings.output", 1, 3.01, np.float32),
    "one weight of the head": _weight("llama", "head", "lm_head.weight", (41, 3), 1.5),
    "head tied": _input("llama", "head", "Transpose", "val_35.end", 0, "model.embed_tokens.weight"),
    "head untied": Fault("qwen3", "head", _other_head),
    "logits scaling": _number("granite", "head", "Div", "logits", 1, 2.51, np.float32),
    # Paged layout.
    "slots by one": _shifted("paged", "layer 1", "reshape_and_cache", "present_kv_pool_0", 3, np.int32),
    "paged attention scale": _attribute("paged", "layer 1", "paged_attention", 1, "scale", 0.33),
    "paged long window off": _attribute("paged long window", "layer 1", "paged_attention", 1, "sliding_window", 0),
    "logits of another token": _shifted("paged", "head", "Gather", "to_9.end", 1, np.int32, by=-1),
}

ON_PUSH = (
    "rope base",
    "causal mask by one",
    "KV offset by one",
    "one weight of the last layer",
    "one weight of the embedding",
    "window by one",
)
