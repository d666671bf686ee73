"""``hybridge quantize``: a checkpoint in, a smaller checkpoint out, or an error and nothing written."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import UnsupportedError, located
from hybridge.artifact.folder import FolderKind, atomic_folder
from hybridge.artifact.progress import NoProgress, Progress
from hybridge.artifact.safetensors_file import TensorSlot
from hybridge.exporter.checkpoint import Checkpoint, open_checkpoint
from hybridge.exporter.checkpoint.checkpoint import CONFIG_FILE
from hybridge.exporter.checkpoint.entries import copy_side_file, read_json
from hybridge.exporter.checkpoint.shards import INDEX_FILE
from hybridge.exporter.options import ExportOptions
from hybridge.exporter.output import check_export_output
from hybridge.exporter.plan import ExportPlan, open_plan
from hybridge.quantization.calibration import Calibration
from hybridge.quantization.config import quantization_config
from hybridge.quantization.input_scaling import ScalableInput, scalable_inputs
from hybridge.quantization.layer_quantizer import LayerQuantizer
from hybridge.quantization.matrix import MatrixReport
from hybridge.quantization.mix import GroupReport, check_bits, mixed
from hybridge.quantization.options import AWQ, GPTQ, RTN, QuantizeOptions
from hybridge.quantization.picture import write_sensitivities
from hybridge.quantization.report import QuantizeReport
from hybridge.quantization.roles import Roles, roles_of
from hybridge.quantization.shard import check_unchanged, create_shard
from hybridge.quantization.units import units_of

REPORT_FILE = "hybridge_quantization.json"
_KIND = FolderKind("a checkpoint", ((REPORT_FILE, "matrices"),), "give another path")


def quantize_checkpoint(
    checkpoint: Path, out: Path, options: QuantizeOptions | None = None, progress: Progress | None = None
) -> QuantizeReport:
    """Write ``checkpoint`` with quantised matrices into the folder ``out``, in the format of compressed-tensors.

    CheckpointError, UnsupportedError: it cannot be quantised as it is; OutputError: ``out`` cannot be written. In every
    case ``out`` is then as before. One shard is written at a time, in blocks of rows.
    """
    options, progress = options or QuantizeOptions(), progress or NoProgress()
    checkpoint, out = Path(checkpoint), Path(out)
    check_export_output(checkpoint, out, options.overwrite, _KIND)
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
    try:
        with located(checkpoint), atomic_folder(out, options.overwrite, _KIND) as folder:
            return _write(source, inputs, roles, options, folder, out, progress)
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
    inner = source.config.get("text_config")
    return {**source.config, **(inner if isinstance(inner, dict) else {})}


def _write(
    source: Checkpoint,
    inputs: Sequence[ScalableInput],
    roles: Roles,
    options: QuantizeOptions,
    folder: Path,
    out: Path,
    progress: Progress,
) -> QuantizeReport:
    total = sum(slot.nbytes for slot in source.tensors.values())
    scale = source.dtype if source.dtype in (DType.FLOAT16, DType.BFLOAT16) else DType.FLOAT32
    slots = {module: source.tensors[f"{module}.weight"] for module in roles.schemes}
    if options.bits is not None:
        check_bits(options.bits, slots, scale)
    calibration = None
    if options.is_calibrated:
        calibration = Calibration(source.path, None if options.text is None else Path(options.text), "cpu", progress)
    groups: tuple[GroupReport, ...] = ()
    if options.bits is not None and calibration is not None:
        roles, groups = mixed(roles, slots, options.bits, scale, options.method != RTN, calibration, progress)
    progress.start("copy other weights")
    placed: dict[str, TensorSlot] = {}
    for shard in source.shards:
        placed |= create_shard(shard, folder / shard.path.name, roles.schemes, scale, progress)
    modules = {module: source.tensors[f"{module}.weight"] for module in roles.schemes}
    if options.method not in (AWQ, GPTQ):
        calibration = None
    layers = LayerQuantizer(source.tensors, placed, roles, scale, options, inputs, calibration)
    progress.start("quantise", sum(slot.nbytes for slot in modules.values()), "B")
    found: dict[str, MatrixReport] = {}
    for unit in units_of(modules):
        found |= {each.module: each for each in layers.run(unit, progress.advance)}
    for shard in source.shards:
        check_unchanged(shard)
    matrices = [found[module] for module in modules]
    nbytes = sum(slot.nbytes for slot in placed.values())
    if len(source.shards) > 1 or (source.path / INDEX_FILE).exists():
        weight_map = {name: slot.path.name for name, slot in sorted(placed.items())}
        _write_json(folder / INDEX_FILE, {"metadata": {"total_size": nbytes}, "weight_map": weight_map})
    quantization = quantization_config(roles.schemes, roles.ignored, roles.default)
    _write_json(folder / CONFIG_FILE, {**source.config, "quantization_config": quantization})
    for path in source.side_files:
        copy = folder / path.relative_to(source.path)
        copy.parent.mkdir(exist_ok=True)
        copy_side_file(source.path, path.relative_to(source.path).as_posix(), copy)
    notes = (*source.notes, *(write_sensitivities(groups, folder) if groups else roles.notes))
    report = QuantizeReport(str(out), options.format, options.method, total, nbytes, tuple(matrices), notes, groups)
    _write_json(folder / REPORT_FILE, report.to_json())
    return report


def _write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
