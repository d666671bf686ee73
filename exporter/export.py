"""``hybridge export``: one checkpoint folder in, one artifact folder out, or an error and nothing written."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hybridge.artifact.config import CONFIG_FILE, MTP_CONFIG_FILE, MTP_MODEL_FILE, config_text
from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import located
from hybridge.artifact.folder import atomic_folder
from hybridge.artifact.kv_dtypes import FP8_E4M3
from hybridge.artifact.manifest import Manifest, record_file, write_manifest
from hybridge.artifact.paged import PAGED
from hybridge.artifact.progress import NoProgress, Progress
from hybridge.artifact.safetensors_file import TensorSlot, read_safetensors
from hybridge.artifact.state_dtypes import state_dtype_name
from hybridge.exporter.checkpoint import Checkpoint
from hybridge.exporter.checkpoint.background_scan import background_scan
from hybridge.exporter.checkpoint.checkpoint import TOKENIZER_FILE
from hybridge.exporter.checkpoint.entries import copy_side_file
from hybridge.exporter.checkpoint.quantized.joined import joined_weight
from hybridge.exporter.checkpoint.scan import ScanReport
from hybridge.exporter.families.mtp import MtpHead
from hybridge.exporter.options import ExportOptions
from hybridge.exporter.output import check_export_output
from hybridge.exporter.plan import ExportPlan, open_plan
from hybridge.exporter.trace.interface import runtime_config
from hybridge.exporter.versions import tool_versions
from hybridge.exporter.weights import place_shards, write_derived
from hybridge.exporter.weights.placing import WEIGHTS_FOLDER
from hybridge.exporter.weights.quantized import PlacedWeight, place_quantized, shards_to_place

MODEL_FILE = "model.onnx"
# Initializer name to its place.
Slots = Mapping[str, TensorSlot | PlacedWeight]


@dataclass(frozen=True)
class ExportReport:
    """Summary of an export. ``bytes_linked`` are hard links to the checkpoint's files, ``bytes_written`` all others."""

    out: str
    model_type: str
    dtype: str
    layers: int
    nodes: int
    bytes_linked: int
    bytes_written: int
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """A JSON object of the fields."""
        return asdict(self)


def export_checkpoint(
    checkpoint: Path, out: Path, options: ExportOptions | None = None, progress: Progress | None = None
) -> ExportReport:
    """Export ``checkpoint`` into the folder ``out``.

    CheckpointError, UnsupportedError: the checkpoint cannot be exported as it is; OutputError: ``out`` cannot be
    written; ExportError: the traced graph breaks its contract. In every case, Ctrl-C included, ``out`` is as
    before.
    """
    options, progress = options or ExportOptions(), progress or NoProgress()
    checkpoint, out = Path(checkpoint), Path(out)
    check_export_output(checkpoint, out, options.overwrite)
    source, plan = open_plan(checkpoint, options)
    try:
        targets = plan.scan_targets(source.tensors) if options.scan else None
        imported = [weight for weight in plan.quantized(source).values() if not weight.rounded]
        scan_of = background_scan(targets, imported)
        with located(checkpoint), scan_of as scan, atomic_folder(out, options.overwrite) as folder:
            return _write(source, plan, options, scan, folder, out, progress)
    finally:
        progress.finish()


def _write(
    source: Checkpoint,
    plan: ExportPlan,
    options: ExportOptions,
    scan: Callable[[], ScanReport | None],
    folder: Path,
    out: Path,
    progress: Progress,
) -> ExportReport:
    slots = _weights(source, plan, options, folder, progress)
    nodes = _graph(plan, options, slots, folder, progress)
    (folder / CONFIG_FILE).write_text(config_text(plan.config), encoding="utf-8")
    for path in source.side_files:
        copy = folder / path.relative_to(source.path)
        copy.parent.mkdir(exist_ok=True)
        copy_side_file(source.path, path.relative_to(source.path).as_posix(), copy)
    if options.scan:
        progress.start("scan weights")
    scanned = scan()
    notes = (*plan.notes, *_tokenizer_notes(source))
    notes = (*notes, *(scanned.notes if scanned else ("the weights were not scanned (`scan=False`)",)))
    _manifest(source, options, notes, folder)
    files = [p.stat() for p in folder.rglob("*") if p.is_file()]
    linked = sum(s.st_size for s in files if s.st_nlink > 1)
    total = sum(s.st_size for s in files)
    return ExportReport(
        str(out),
        plan.config.model_type,
        plan.config.dtype.value,
        plan.config.num_hidden_layers,
        nodes,
        linked,
        total - linked,
        (*notes, *_link_notes(folder)),
    )


def _tokenizer_notes(source: Checkpoint) -> tuple[str, ...]:
    if any(path.name == TOKENIZER_FILE for path in source.side_files):
        return ()
    return (f"the checkpoint has no {TOKENIZER_FILE}: the artifact accepts token ids only",)


def _link_notes(folder: Path) -> tuple[str, ...]:
    if all(path.stat().st_nlink == 1 for path in (folder / WEIGHTS_FOLDER).iterdir()):
        return ()
    return (
        "the weights are hard links to the checkpoint's files, which onnxruntime.InferenceSession loads and onnx.load, "
        "onnx.checker and polygraphy refuse: for these tools, export with `weights='copy'`",
    )


def _weights(source: Checkpoint, plan: ExportPlan, options: ExportOptions, folder: Path, progress: Progress) -> Slots:
    """Place the shards, the converted and the derived tensors; the slot of every graph initializer."""
    progress.start("place weights")
    used = plan.quantized(source)
    joined = [p for p in plan.all_parameters if p.parts and p.parts[0] in used]
    joined_parts = {part for p in joined for part in p.parts}
    quantized = {name: weight for name, weight in used.items() if name not in joined_parts}
    quantized |= {
        p.initializer: joined_weight(p.initializer, [used[part] for part in p.parts], p.shape[0]) for p in joined
    }
    placed = place_shards(shards_to_place(source.shards, quantized), folder, options.weights)
    unquantized = [source.tensors[name] for name in plan.graph_sources if name not in used]
    weights, tensors = place_quantized(folder, quantized.values(), unquantized, placed, progress.advance)
    stored: dict[str, TensorSlot | PlacedWeight] = {**tensors, **weights}
    slots = {p.initializer: stored[p.source] for p in plan.all_parameters if p.source is not None and not p.derived}
    parts = [part for p in plan.all_parameters if not p.derived for part in p.parts]
    slots.update({part: stored[part] for part in parts if part not in joined_parts})
    slots.update({p.initializer: stored[p.initializer] for p in joined})
    derived = plan.derived_tensors(source.tensors)
    if derived:
        slots.update(write_derived(folder, derived))
    return slots


def _graph(plan: ExportPlan, options: ExportOptions, slots: Slots, folder: Path, progress: Progress) -> int:
    """Trace, finish, check and write model.onnx; the number of its nodes."""
    from hybridge.exporter.trace.garbage import paused_collection

    progress.start("trace the graph")
    with paused_collection():
        from hybridge.exporter.trace.build import build_model

        own = plan.decoder, plan.config, plan.parameters
        model = build_model(*own, slots, folder, options.all_logits, options.head, plan.cache_factors)
        (folder / MODEL_FILE).write_bytes(model.SerializeToString())
        if plan.mtp is not None:
            _mtp_graph(plan.mtp, plan, slots, folder)
    return len(model.graph.node)


def _mtp_graph(head: MtpHead, plan: ExportPlan, slots: Slots, folder: Path) -> None:
    """Write mtp.onnx and, as config.json does for the model, what is in it."""
    from hybridge.exporter.trace.build import build_mtp_model

    model = plan.config
    own = ExportOptions(
        layout=PAGED,
        kv_dtype=FP8_E4M3 if model.has_kv_scales else "auto",
        max_batch_size=model.max_batch_size,
        max_seq_len=model.max_seq_len,
    )
    config = runtime_config(head.decoder, own, model.dtype, model.eos_token_ids)
    (folder / MTP_MODEL_FILE).write_bytes(
        build_mtp_model(head, config, slots, folder, plan.mtp_factors).SerializeToString()
    )
    (folder / MTP_CONFIG_FILE).write_text(config_text(config), encoding="utf-8")


def _manifest(source: Checkpoint, options: ExportOptions, notes: tuple[str, ...], folder: Path) -> None:
    records = []
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        header = None
        if path.suffix == ".safetensors" and not options.full_hash:
            header = read_safetensors(path).data_start
        records.append(record_file(folder, path.relative_to(folder).as_posix(), header))
    given = {**asdict(options), "state_dtype": state_dtype_name(options.state_dtype)}
    arguments = json.loads(json.dumps(given, default=_json_name))
    write_manifest(folder, Manifest(tool_versions(), source.path.name, arguments, tuple(records), notes))


def _json_name(value: object) -> str:
    return value.value if isinstance(value, DType) else str(value)
