"""Inspect a Hugging Face checkpoint: headers only."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from math import prod
from pathlib import Path
from typing import Any

from hybridge.artifact.errors import CheckpointError, UnsupportedError, located
from hybridge.exporter.checkpoint import Checkpoint, open_checkpoint
from hybridge.exporter.options import ExportOptions
from hybridge.exporter.plan import ExportPlan, open_plan
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


@dataclass(frozen=True)
class CheckpointInspection:
    """A checkpoint. ``refusal`` says why it cannot be exported, None when it can; states are those of an export
    with default options, none when it cannot be exported."""

    path: str
    model_type: str
    dtype: str
    max_seq_len: int | None
    parameters: int
    weight_bytes: int
    weight_types: dict[str, int]
    quantization: dict[str, Any] | None
    layers: tuple[LayerSummary, ...]
    outside_layers: tuple[WeightTotal, ...]
    states: tuple[StateSummary, ...]
    shards: dict[str, int]
    refusal: str | None
    notes: tuple[str, ...]

    kind = "checkpoint"

    def to_json(self) -> dict[str, Any]:
        """A JSON object of the fields and the kind."""
        return {"kind": self.kind, **asdict(self)}


def inspect_checkpoint(path: Path) -> CheckpointInspection:
    """Inspect the folder ``path``; CheckpointError when it cannot be read at all."""
    with located(path):
        source = open_checkpoint(path)
    plan, refusal = _plan(path)
    weights = [Weight(name, slot.dtype, slot.shape, slot.nbytes) for name, slot in source.tensors.items()]
    states = state_summaries(plan.config) if plan else ()
    kinds = plan.config.layer_types if plan else ()
    return CheckpointInspection(
        path=str(path),
        model_type=str(source.config.get("model_type")),
        dtype=source.dtype.value,
        max_seq_len=plan.config.max_seq_len if plan else None,
        parameters=sum(prod(w.shape) for w in weights),
        weight_bytes=sum(w.nbytes for w in weights),
        weight_types=bytes_by_type(weights),
        quantization=plan.config.quantization.to_json() if plan and plan.config.quantization else None,
        layers=layer_summaries(weights, kinds, states),
        outside_layers=totals_outside_layers(weights),
        states=states,
        shards=_shards(source),
        refusal=refusal,
        notes=plan.notes if plan else (),
    )


def _plan(path: Path) -> tuple[ExportPlan | None, str | None]:
    try:
        return open_plan(path, ExportOptions())[1], None
    except (CheckpointError, UnsupportedError) as error:
        return None, str(error)


def _shards(source: Checkpoint) -> dict[str, int]:
    return {shard.path.name: shard.nbytes for shard in source.shards}
