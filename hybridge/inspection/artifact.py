"""Inspect an exported artifact: its contract, its graph, its weights and the engines built from it."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hybridge.artifact.bindings import Binding
from hybridge.artifact.config import MTP_CONFIG_FILE, read_config
from hybridge.artifact.dtypes import DType
from hybridge.artifact.engine_record import ENGINE_FILE
from hybridge.artifact.manifest import damaged_files, read_manifest
from hybridge.artifact.path_kind import MODEL_FILE
from hybridge.artifact.untrusted_file import has_file
from hybridge.inspection.summaries import (
    LayerSummary,
    StateSummary,
    Weight,
    WeightTotal,
    bytes_by_type,
    layer_summaries,
    state_summaries,
    totals_outside_layers,
)

if TYPE_CHECKING:
    import onnx


@dataclass(frozen=True)
class ArtifactInspection:
    """An artifact. ``ops`` counts the graph's nodes by "domain::op"; ``functions`` the nodes of each ONNX function.

    ``damage`` lists files that are missing or have changed size since the export. mtp_layers: kinds of the
    layers of the multi-token prediction head, None if there is none.
    """

    path: str
    model_type: str
    layout: str
    dtype: str
    vocab_size: int
    hidden_size: int
    max_batch_size: int
    max_seq_len: int
    parameters: int
    weight_bytes: int
    weight_types: dict[str, int]
    quantization: dict[str, Any] | None
    layers: tuple[LayerSummary, ...]
    outside_layers: tuple[WeightTotal, ...]
    states: tuple[StateSummary, ...]
    mtp_layers: tuple[str, ...] | None
    inputs: tuple[Binding, ...]
    outputs: tuple[Binding, ...]
    opsets: dict[str, int]
    ops: dict[str, int]
    functions: dict[str, int]
    engines: tuple[str, ...]
    checkpoint: str
    versions: dict[str, str]
    damage: tuple[str, ...]
    notes: tuple[str, ...]

    kind = "artifact"

    def to_json(self) -> dict[str, Any]:
        """A JSON object of the fields and the kind."""
        return {"kind": self.kind, **asdict(self)}


def inspect_artifact(folder: Path) -> ArtifactInspection:
    """Inspect ``folder``; ArtifactError when its contract or its graph cannot be read."""
    from hybridge.artifact.onnx_file import read_onnx

    config = read_config(folder)
    manifest = read_manifest(folder)
    model = read_onnx(folder, MODEL_FILE).model
    weights = _weights(model)
    states = state_summaries(config)
    scales = {name for node in model.graph.node if node.op_type == "DequantizeLinear" for name in node.input[1:]}
    return ArtifactInspection(
        path=str(folder),
        model_type=config.model_type,
        layout=config.layout,
        dtype=config.dtype.value,
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        max_batch_size=config.max_batch_size,
        max_seq_len=config.max_seq_len,
        parameters=sum(prod(w.shape) for w in weights if w.name not in scales),
        weight_bytes=sum(w.nbytes for w in weights),
        weight_types=bytes_by_type(weights),
        quantization=None if config.quantization is None else config.quantization.to_json(),
        layers=layer_summaries(weights, config.layer_types, states),
        outside_layers=totals_outside_layers(weights),
        states=states,
        mtp_layers=_mtp_layers(folder),
        inputs=config.bindings.inputs,
        outputs=config.bindings.outputs,
        opsets={_domain(opset.domain): opset.version for opset in model.opset_import},
        ops=_op_counts(model.graph.node),
        functions={_op_name(f.domain, f.name): len(f.node) for f in model.functions},
        engines=_engines(folder),
        checkpoint=manifest.checkpoint,
        versions=manifest.versions,
        damage=damaged_files(folder, manifest),
        notes=manifest.notes,
    )


def _mtp_layers(folder: Path) -> tuple[str, ...] | None:
    if not has_file(folder, MTP_CONFIG_FILE):
        return None
    return read_config(folder, MTP_CONFIG_FILE).layer_types


def _weights(model: onnx.ModelProto) -> list[Weight]:
    weights = []
    for tensor in model.graph.initializer:
        dtype, shape = DType.from_onnx(tensor.data_type), tuple(tensor.dims)
        weights.append(Weight(tensor.name, dtype, shape, dtype.nbytes(prod(shape))))
    return weights


def _op_counts(nodes: Any) -> dict[str, int]:
    return dict(Counter(_op_name(node.domain, node.op_type) for node in nodes).most_common())


def _op_name(domain: str, op_type: str) -> str:
    return f"{_domain(domain)}::{op_type}"


def _domain(domain: str) -> str:
    return domain or "ai.onnx"


def _engines(folder: Path) -> tuple[str, ...]:
    return tuple(sorted(p.parent.relative_to(folder).as_posix() for p in folder.glob(f"engines/*/{ENGINE_FILE}")))
