"""``hybridge quantize``: a checkpoint in, a smaller checkpoint out, or an error and nothing written."""

from __future__ import annotations

import json
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
from hybridge.exporter.plan import open_plan
from hybridge.exporter.rounding.blocks import peak_of
from hybridge.exporter.rounding.siblings import shared_peaks
from hybridge.quantization.calibration import Calibration
from hybridge.quantization.config import quantization_config
from hybridge.quantization.matrix import MatrixReport
from hybridge.quantization.mix import GroupReport, check_bits, mixed
from hybridge.quantization.options import GPTQ, RTN, QuantizeOptions
from hybridge.quantization.picture import write_sensitivities
from hybridge.quantization.report import QuantizeReport
from hybridge.quantization.roles import Roles, roles_of
from hybridge.quantization.scheme import MatrixContext
from hybridge.quantization.schemes import NvFp4Scheme
from hybridge.quantization.shard import check_unchanged, create_shard, fill_matrix

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
        source = _open(checkpoint)
        tied = bool(_text_config(source).get("tie_word_embeddings")) or not any(
            name.endswith("lm_head.weight") for name in source.tensors
        )
        roles = roles_of(source.tensors, options, tied)
        if not roles.schemes:
            raise UnsupportedError("expected matrices to quantise, found none: give a checkpoint of a language model")
    try:
        with located(checkpoint), atomic_folder(out, options.overwrite, _KIND) as folder:
            return _write(source, roles, options, folder, out, progress)
    finally:
        progress.finish()


def _open(checkpoint: Path) -> Checkpoint:
    """The checkpoint, which Hybridge can export and nothing has quantised yet."""
    config = read_json(checkpoint, CONFIG_FILE) or {}
    if config.get("quantization_config") or config.get("compression_config"):
        raise UnsupportedError(
            f"{CONFIG_FILE}: expected a checkpoint in full precision, found a quantised one: give the original one"
        )
    source = open_checkpoint(checkpoint)
    open_plan(checkpoint, ExportOptions(kernels="optional"))
    if any(shard.path.suffix != ".safetensors" for shard in source.shards):
        raise UnsupportedError("expected safetensors, found a PyTorch file: save it with transformers' save_pretrained")
    return source


def _text_config(source: Checkpoint) -> dict[str, object]:
    inner = source.config.get("text_config")
    return {**source.config, **(inner if isinstance(inner, dict) else {})}


def _write(
    source: Checkpoint, roles: Roles, options: QuantizeOptions, folder: Path, out: Path, progress: Progress
) -> QuantizeReport:
    total = sum(slot.nbytes for slot in source.tensors.values())
    scale = source.dtype if source.dtype in (DType.FLOAT16, DType.BFLOAT16) else DType.FLOAT32
    slots = {module: source.tensors[f"{module}.weight"] for module in roles.schemes}
    if options.bits is not None:
        check_bits(options.bits, slots, scale)
    calibration = None
    if options.is_calibrated:
        calibration = Calibration(source.path, None if options.text is None else Path(options.text), progress)
    groups: tuple[GroupReport, ...] = ()
    if options.bits is not None and calibration is not None:
        roles, groups = mixed(roles, slots, options.bits, scale, options.method != RTN, calibration, progress)
    peaks = _peaks(source, roles, progress)
    progress.start("copy other weights")
    placed: dict[str, TensorSlot] = {}
    for shard in source.shards:
        placed |= create_shard(shard, folder / shard.path.name, roles.schemes, scale, progress)
    modules = {module: source.tensors[f"{module}.weight"] for module in roles.schemes}
    columns = {module: slot.shape[1] for module, slot in modules.items()}
    found: dict[str, MatrixReport] = {}
    with_factors = calibration if options.method == GPTQ else None
    for batch in [list(modules)] if with_factors is None else with_factors.batches(columns):
        factors = {} if with_factors is None else with_factors.factors(batch, progress)
        progress.start("quantise", sum(modules[module].nbytes for module in batch), "B")
        for module in batch:
            context = MatrixContext(scale, options.method != RTN, peaks.get(module, 0.0), factors.get(module))
            found[module] = fill_matrix(modules[module], placed, roles.schemes[module], context)
            progress.advance(modules[module].nbytes)
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


def _peaks(source: Checkpoint, roles: Roles, progress: Progress) -> dict[str, float]:
    """The largest magnitude of each module whose scheme has a scale for the whole weight."""
    modules = [module for module, scheme in roles.schemes.items() if isinstance(scheme, NvFp4Scheme)]
    if not modules:
        return {}
    progress.start("find the largest weights", len(modules))
    peaks = {}
    for module in modules:
        peaks[module] = peak_of(source.tensors[f"{module}.weight"])
        progress.advance()
    return shared_peaks(peaks)


def _write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
