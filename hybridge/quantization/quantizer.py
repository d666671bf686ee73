"""``hybridge quantize``: writes a smaller checkpoint, or raises an error and writes nothing."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import UnsupportedError, located
from hybridge.artifact.folder import FolderKind, atomic_folder, sync_folder
from hybridge.artifact.progress import NoProgress, Progress
from hybridge.exporter.checkpoint import Checkpoint, open_checkpoint
from hybridge.exporter.checkpoint.checkpoint import CONFIG_FILE
from hybridge.exporter.checkpoint.entries import copy_side_file, read_json
from hybridge.exporter.checkpoint.shards import INDEX_FILE
from hybridge.exporter.families.text_models import text_config_of
from hybridge.exporter.options import ExportOptions
from hybridge.exporter.output import check_export_output
from hybridge.exporter.plan import ExportPlan, open_plan
from hybridge.quantization.calibration import check_device
from hybridge.quantization.config import quantization_config
from hybridge.quantization.input_scaling import scalable_inputs
from hybridge.quantization.mix import check_bits
from hybridge.quantization.options import AWQ, QuantizeOptions
from hybridge.quantization.picture import write_sensitivities
from hybridge.quantization.report import QuantizeReport
from hybridge.quantization.roles import roles_of
from hybridge.quantization.run import QuantizeRun
from hybridge.quantization.run_digest import run_digest
from hybridge.quantization.work_folder import WorkFolder, work_folder

REPORT_FILE = "hybridge_quantization.json"
_KIND = FolderKind("a checkpoint", ((REPORT_FILE, "matrices"),), "give another path")


def quantize_checkpoint(
    checkpoint: Path, out: Path, options: QuantizeOptions | None = None, progress: Progress | None = None
) -> QuantizeReport:
    """Write ``checkpoint`` with quantised matrices into the folder ``out``, in the format of compressed-tensors.

    CheckpointError, UnsupportedError: it cannot be quantised as it is; OutputError: ``out`` cannot be written. In every
    case ``out`` is then as before. Layers are quantised one after another, in blocks of rows; a run that is
    killed, or stopped by a transient error, leaves those that it finished in a hidden folder beside ``out``.
    """
    options, progress = options or QuantizeOptions(), progress or NoProgress()
    checkpoint, out = Path(checkpoint), Path(out)
    check_export_output(checkpoint, out, options.overwrite, _KIND)
    check_device(options.device)
    with located(checkpoint):
        source, plan = _open(checkpoint)
        tied = bool(_text_config(source).get("tie_word_embeddings")) or not any(
            name.endswith("lm_head.weight") for name in source.tensors
        )
        roles = roles_of(source.tensors, options, tied)
        if not roles.schemes:
            raise UnsupportedError("expected matrices to quantise, found none: give a checkpoint of a language model")
        inputs = scalable_inputs(plan.decoder, plan.parameters) if options.method == AWQ else []
        if options.method == AWQ and not inputs:
            raise UnsupportedError(
                f"method: expected inputs that awq can scale, found none in {plan.decoder.model_type}: choose gptq"
            )
        scale = source.dtype if source.dtype in (DType.FLOAT16, DType.BFLOAT16) else DType.FLOAT32
        run = QuantizeRun(source, roles, inputs, options, scale)
    if options.bits is not None:
        check_bits(options.bits, run.slots, run.scale, options.zero_points)
    try:
        with located(checkpoint), atomic_folder(out, options.overwrite, _KIND) as folder:
            digest = run_digest(source, options)
            with work_folder(out, digest, options.resume) as work:
                return _write(run, work, folder, out, progress)
    finally:
        progress.finish()


def _open(checkpoint: Path) -> tuple[Checkpoint, ExportPlan]:
    """The checkpoint, which Hybridge can export and nothing has quantised yet, and the plan of its export."""
    config = read_json(checkpoint, CONFIG_FILE) or {}
    if config.get("quantization_config") or config.get("compression_config"):
        raise UnsupportedError(
            f"{CONFIG_FILE}: expected a checkpoint in full precision, found a quantised one: give the original one"
        )
    source = open_checkpoint(checkpoint)
    _, plan = open_plan(checkpoint, ExportOptions(kernels="optional"))
    if any(shard.path.suffix != ".safetensors" for shard in source.shards):
        raise UnsupportedError("expected safetensors, found a PyTorch file: save it with transformers' save_pretrained")
    return source, plan


def _text_config(source: Checkpoint) -> dict[str, object]:
    inner = text_config_of(source.config)
    return {**source.config, **(inner if isinstance(inner, dict) else {})}


def _write(run: QuantizeRun, work: WorkFolder, folder: Path, out: Path, progress: Progress) -> QuantizeReport:
    source, options = run.source, run.options
    calibration = run.calibration(work, progress)
    run, groups = run.mixed(calibration, work, progress)
    placed = run.shards(work, progress)
    matrices = run.matrices(placed, calibration, work, progress)
    total = sum(slot.nbytes for slot in source.tensors.values())
    nbytes = sum(slot.nbytes for slot in placed.values())
    if len(source.shards) > 1 or (source.path / INDEX_FILE).exists():
        weight_map = {name: slot.path.name for name, slot in sorted(placed.items())}
        _write_json(folder / INDEX_FILE, {"metadata": {"total_size": nbytes}, "weight_map": weight_map})
    quantization = quantization_config(run.roles.schemes, run.roles.ignored, run.roles.default)
    _write_json(folder / CONFIG_FILE, {**source.config, "quantization_config": quantization})
    for path in source.side_files:
        copy = folder / path.relative_to(source.path)
        copy.parent.mkdir(exist_ok=True)
        copy_side_file(source.path, path.relative_to(source.path).as_posix(), copy)
    notes = (*source.notes, *(write_sensitivities(groups, folder) if groups else run.roles.notes))
    if run.options.method != options.method:
        notes = (
            *notes,
            f"{options.method} does not bring predictions closer with this mix: the weights are those of mse",
        )
    report = QuantizeReport(str(out), options.format, options.method, total, nbytes, tuple(matrices), notes, groups)
    _write_json(folder / REPORT_FILE, report.to_json())
    # A disk that is full only now must be found while the layers can be resumed.
    sync_folder(folder)
    with contextlib.ExitStack() as undo:
        for shard in source.shards:
            written, target = work.folder / shard.path.name, folder / shard.path.name
            os.rename(written, target)
            undo.callback(os.rename, target, written)
        undo.pop_all()
    return report


def _write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
