"""Inspections as tables for a person."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rich.table import Table

from hybridge.artifact.engine_record import PluginsRecord
from hybridge.cli.flag_names import in_flags
from hybridge.cli.text import bytes_text, count_text
from hybridge.inspection import ArtifactInspection, CheckpointInspection, EngineInspection, Inspection


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
        "states": _states(a),
        "prediction head": "" if a.mtp_layers is None else ", ".join(a.mtp_layers),
        "opsets": ", ".join(f"{domain} {version}" for domain, version in a.opsets.items()),
        "ops": _counts(a.ops),
        "functions": ", ".join(f"{name} ({nodes} nodes)" for name, nodes in a.functions.items()) or "none",
        "engines": ", ".join(a.engines) or "none",
        "exported with": ", ".join(f"{name} {version}" for name, version in a.versions.items()),
        "files": "as exported" if not a.damage else "; ".join(a.damage),
    }
    bindings = Table(title="bindings", title_justify="left")
    for column in ("name", "type", "shape", "replaced by"):
        bindings.add_column(column)
    for binding in (*a.inputs, *a.outputs):
        bindings.add_row(binding.name, binding.dtype.value, _shape(binding.shape), binding.replaced_by or "")
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
    bindings = Table(title="bindings", title_justify="left")
    for column in ("name", "mode", "type", "shape", "shares memory with"):
        bindings.add_column(column)
    for binding in r.bindings:
        shape = _shape(binding["shape"])
        bindings.add_row(binding["name"], binding["mode"], binding["dtype"], shape, binding.get("aliases", ""))
    profiles = Table(title="profiles (min, opt, max)", title_justify="left")
    for column in ("profile", "input", "min", "opt", "max"):
        profiles.add_column(column)
    for profile in r.profiles:
        for name, shapes in profile.shapes.items():
            profiles.add_row(profile.name, name, *(_shape(shape) for shape in shapes))
    return [_facts(f"engine {e.path}", facts), bindings, profiles]


def _plugins(plugins: PluginsRecord) -> str:
    if not plugins:
        return f"none: {plugins.reason}"
    states = "updated in place" if plugins.aliased else "in two buffers"
    return f"{_counts(plugins.ops)} of {plugins.namespace} {plugins.version}, states {states}"


def _facts(title: str, facts: Mapping[str, str]) -> Table:
    table = Table(title=title, title_justify="left", show_header=False)
    for name, value in facts.items():
        if value:
            table.add_row(name, value)
    return table


def _layers(model: CheckpointInspection | ArtifactInspection) -> Table:
    table = Table(title="layers", title_justify="left")
    table.add_column("layer", justify="right")
    table.add_column("kind")
    for column in ("parameters", "weights", "state per row", "cache per token"):
        table.add_column(column, justify="right")
    for layer in model.layers:
        state = bytes_text(layer.state_bytes_per_row) if layer.state_bytes_per_row else ""
        cache = bytes_text(layer.state_bytes_per_token) if layer.state_bytes_per_token else ""
        numbers = (count_text(layer.parameters), bytes_text(layer.weight_bytes), state, cache)
        table.add_row(str(layer.index), layer.kind, *numbers)
    return table


def _outside(model: CheckpointInspection | ArtifactInspection) -> Table:
    table = Table(title="outside the layers", title_justify="left")
    table.add_column("tensor")
    table.add_column("parameters", justify="right")
    table.add_column("weights", justify="right")
    for total in model.outside_layers:
        table.add_row(total.name, count_text(total.parameters), bytes_text(total.weight_bytes))
    return table


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
