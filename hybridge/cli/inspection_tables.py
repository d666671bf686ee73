"""Inspections as tables for a person."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rich.table import Table

from hybridge.artifact.engine_record import EngineRecord, PluginsRecord
from hybridge.cli.flag_names import in_flags
from hybridge.cli.text import bytes_text, count_text
from hybridge.inspection import ArtifactInspection, CheckpointInspection, EngineInspection, Inspection
from hybridge.inspection.summaries import LayerSummary
from hybridge.runtime.engines.tensorrt.dense_memory_plan import DenseMemoryPlan
from hybridge.runtime.engines.tensorrt.paged.memory_plan import MemoryPlan

# Entries shown of a hostile file, which may list millions; --json gives all of them.
_MOST_ROWS, _MOST_CHARACTERS = 1_000, 10_000
_NUMBERS = {"layer", "parameters", "weights", "state per row", "cache per token"}


def tables_of(inspection: Inspection) -> list[Any]:
    """Everything to print about ``inspection``."""
    if isinstance(inspection, CheckpointInspection):
        return _checkpoint(inspection)
    if isinstance(inspection, ArtifactInspection):
        return _artifact(inspection)
    return _engine(inspection)


def _checkpoint(c: CheckpointInspection) -> list[Any]:
    can = "can be exported" if c.refusal is None else f"cannot be exported: {in_flags(c.refusal, {})}"
    facts = {
        "model": c.model_type,
        "type": c.dtype,
        "parameters": count_text(c.parameters),
        "weights": _weights(c.weight_bytes, c.weight_types),
        "quantised": _quantization(c.quantization),
        "states": _states(c),
        "tokens": "" if c.max_seq_len is None else f"at most {c.max_seq_len}",
        "files": ", ".join(f"{name} ({bytes_text(size)})" for name, size in c.shards.items()),
        "export": can,
    }
    return [_facts(f"checkpoint {c.path}", facts), _layers(c), _outside(c)]


def _artifact(a: ArtifactInspection) -> list[Any]:
    facts = {
        "model": f"{a.model_type}, from {a.checkpoint}",
        "type, layout": f"{a.dtype}, {a.layout}",
        "limits": f"batch {a.max_batch_size}, {a.max_seq_len} tokens, vocabulary {a.vocab_size}",
        "parameters": count_text(a.parameters),
        "weights": _weights(a.weight_bytes, a.weight_types),
        "quantised": _quantization(a.quantization),
        "states": _states(a),
        "prediction head": "" if a.mtp_layers is None else ", ".join(a.mtp_layers),
        "opsets": ", ".join(f"{domain} {version}" for domain, version in a.opsets.items()),
        "ops": _counts(a.ops),
        "functions": ", ".join(f"{name} ({nodes} nodes)" for name, nodes in a.functions.items()) or "none",
        "engines": ", ".join(a.engines) or "none",
        "exported with": ", ".join(f"{name} {version}" for name, version in a.versions.items()),
        "files": "as exported" if not a.damage else "; ".join(a.damage),
    }
    bindings = _table(
        "bindings",
        ("name", "type", "shape", "replaced by"),
        ((b.name, b.dtype.value, _shape(b.shape), b.replaced_by or "") for b in (*a.inputs, *a.outputs)),
    )
    return [_facts(f"artifact {a.path}", facts), _layers(a), _outside(a), bindings]


def _engine(e: EngineInspection) -> list[Any]:
    r = e.record
    matches = {True: "yes", False: "no: build it again", None: "no artifact around it"}[e.matches_model]
    facts = {
        "file": f"{r.engine} ({bytes_text(r.nbytes)})",
        "library": f"{r.library} {r.library_version}",
        "targets": ", ".join(r.compute_capabilities),
        "preset": r.preset,
        "plugins": _plugins(r.plugins),
        "limits": f"batch {r.max_batch_size}, {r.max_seq_len} tokens",
        "layers": _counts(dict(sorted(r.layers.items(), key=lambda item: -item[1]))),
        "fits model.onnx": matches,
        "inspector": e.inspector_reason or f"{len(e.inspector or {})} entries (--json shows them)",
    }
    bindings = _table(
        "bindings",
        ("name", "mode", "type", "shape", "shares memory with"),
        ((b["name"], b["mode"], b["dtype"], _shape(b["shape"]), b.get("aliases", "")) for b in r.bindings),
    )
    profiles = _table(
        "profiles (min, opt, max)",
        ("profile", "input", "min", "opt", "max"),
        ((p.name, name, *map(_shape, shapes)) for p in r.profiles for name, shapes in p.shapes.items()),
    )
    memory = _facts(f"memory ({r.preset})", memory_facts(e.memory, r))
    return [_facts(f"engine {e.path}", facts), memory, *_head_memory(e), bindings, profiles]


def _head_memory(e: EngineInspection) -> list[Any]:
    """The memory of the prediction head's engine, if there is one, and of both engines."""
    if e.head is None or e.head_memory is None:
        return []
    total = e.memory.fixed + e.memory.rows + e.head_memory.fixed + e.head_memory.rows
    facts = {**memory_facts(e.head_memory, e.head), "with the model": f"{bytes_text(total)}, with full rows"}
    return [_facts(f"memory of the prediction head ({e.head.preset})", facts)]


def memory_facts(plan: MemoryPlan | DenseMemoryPlan, record: EngineRecord) -> dict[str, str]:
    """The device memory that an engine needs, as a table."""
    first = {
        "engine": bytes_text(plan.engines),
        "activations": f"{bytes_text(plan.activations)}, shared by {plan.contexts} contexts",
        "inputs of a step": f"{bytes_text(plan.inputs)}, and as much pinned host memory",
        "logits of a step": f"{bytes_text(plan.logits)}, and as much pinned host memory",
    }
    last = {"all, with full rows": f"{bytes_text(plan.fixed + plan.rows)}, without TensorRT's own memory for contexts"}
    rows = f"{record.max_batch_size} full rows"
    if isinstance(plan, DenseMemoryPlan):
        states = {"the states of a row": bytes_text(plan.row), f"states of {rows}": bytes_text(plan.rows)}
        sampling = {"sampling": f"{bytes_text(plan.sampling)}, and as much pinned host memory"}
        return first | sampling | states | last | {"graphs": f"{plan.graphs} for each batch size in use"}
    pools = {
        "sampling": f"{bytes_text(plan.sampling)}, and {bytes_text(plan.sampling + plan.sampled)} pinned host memory",
        "draft tokens": bytes_text(plan.drafts),
        "hidden states": bytes_text(plan.hidden),
        "a block of 16 tokens": bytes_text(plan.block),
        "the states of a row": bytes_text(plan.slot),
        f"pools of {rows}": bytes_text(plan.rows),
        "largest pools": bytes_text(plan.largest),
    }
    return (
        first | pools | last | {"graphs": f"{plan.graphs} at most, for {', '.join(map(str, record.row_buckets))} rows"}
    )


def _quantization(record: Mapping[str, Any] | None) -> str:
    if record is None:
        return ""
    return f"{record['bits']} bits a weight: {_counts(record['formats'])}"


def _plugins(plugins: PluginsRecord) -> str:
    if not plugins:
        return f"none: {plugins.reason}"
    states = "updated in place" if plugins.aliased else "in two buffers"
    return f"{_counts(plugins.ops)} of {plugins.namespace} {plugins.version}, states {states}"


def _facts(title: str, facts: Mapping[str, str]) -> Table:
    table = Table(title=title, title_justify="left", show_header=False)
    for name, value in facts.items():
        if value:
            table.add_row(name, value if len(value) <= _MOST_CHARACTERS else f"{value[:_MOST_CHARACTERS]}...")
    return table


def _table(title: str, columns: Iterable[str], rows: Iterable[tuple[str, ...]]) -> Table:
    table = Table(title=title, title_justify="left", caption_justify="left")
    for column in columns:
        table.add_column(column, justify="right" if column in _NUMBERS else "left")
    all_rows = list(rows)
    for row in all_rows[:_MOST_ROWS]:
        table.add_row(*row)
    if len(all_rows) > _MOST_ROWS:
        table.caption = f"{len(all_rows) - _MOST_ROWS} more: --json lists them all"
    return table


def _layers(model: CheckpointInspection | ArtifactInspection) -> Table:
    columns = ("layer", "kind", "parameters", "weights", "state per row", "cache per token")
    return _table("layers", columns, map(_layer, model.layers))


def _layer(layer: LayerSummary) -> tuple[str, ...]:
    state = bytes_text(layer.state_bytes_per_row) if layer.state_bytes_per_row else ""
    cache = bytes_text(layer.state_bytes_per_token) if layer.state_bytes_per_token else ""
    return str(layer.index), layer.kind, count_text(layer.parameters), bytes_text(layer.weight_bytes), state, cache


def _outside(model: CheckpointInspection | ArtifactInspection) -> Table:
    totals = ((t.name, count_text(t.parameters), bytes_text(t.weight_bytes)) for t in model.outside_layers)
    return _table("outside the layers", ("tensor", "parameters", "weights"), totals)


def _states(model: CheckpointInspection | ArtifactInspection) -> str:
    if not model.states:
        return ""
    row = sum(state.bytes_per_row for state in model.states)
    token = sum(state.bytes_per_token for state in model.states)
    return f"{len(model.states)}: {bytes_text(row)} per row and {bytes_text(token)} per token"


def _weights(nbytes: int, by_type: Mapping[str, int]) -> str:
    return f"{bytes_text(nbytes)} (" + ", ".join(f"{bytes_text(n)} {dtype}" for dtype, n in by_type.items()) + ")"


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name.removeprefix('ai.onnx::')}" for name, count in counts.items())


def _shape(shape: Iterable[Any]) -> str:
    return "[" + ", ".join(str(size) for size in shape) + "]"
