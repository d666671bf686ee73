"""The steps of ``hybridge quantize``. A resumed run does not repeat finished steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import CheckpointError, UnsupportedError
from hybridge.artifact.folder import sync_path
from hybridge.artifact.progress import Progress
from hybridge.artifact.safetensors_file import TensorSlot, read_safetensors
from hybridge.exporter.checkpoint import Checkpoint
from hybridge.quantization.awq import scales_of_layers
from hybridge.quantization.calibration import Calibration, text_windows
from hybridge.quantization.input_scaling import ScalableInput
from hybridge.quantization.layer_quantizer import LayerQuantizer
from hybridge.quantization.matrix import MatrixReport
from hybridge.quantization.mix import GroupReport, mixed, products_of
from hybridge.quantization.options import AWQ, GPTQ, MSE, RTN, QuantizeOptions
from hybridge.quantization.roles import Roles
from hybridge.quantization.scaled import ScaledTensor
from hybridge.quantization.scheme import MatrixContext
from hybridge.quantization.sensitivity import Sensitivity
from hybridge.quantization.shard import check_unchanged, create_shard
from hybridge.quantization.units import units_of
from hybridge.quantization.weight_check import check_weights
from hybridge.quantization.work_folder import WorkFolder

_WINDOWS = "calibration windows"


@dataclass(frozen=True)
class QuantizeRun:
    """A run over one checkpoint. inputs: the ones that awq may scale; scale: the type of scales."""

    source: Checkpoint
    roles: Roles
    inputs: Sequence[ScalableInput]
    options: QuantizeOptions
    scale: DType

    @property
    def slots(self) -> dict[str, TensorSlot]:
        """Quantised module to its weight."""
        return {module: self.source.tensors[f"{module}.weight"] for module in self.roles.schemes}

    def mixed(
        self, calibration: Calibration | None, work: WorkFolder, progress: Progress
    ) -> tuple[QuantizeRun, tuple[GroupReport, ...]]:
        """The run with the schemes of a mix where ``bits`` are set, and the groups of matrices.

        With awq, the run is that of the method mse where scales do not bring the predictions closer.
        """
        if self.options.bits is None or calibration is None:
            return self, ()
        plain = self._mix((), calibration, work, progress)
        if self.options.method != AWQ:
            return plain
        scaled = self._mix(self.inputs, calibration, work, progress)
        plain_run = replace(plain[0], options=replace(self.options, method=MSE))
        progress.start("compare with the method mse")
        found = [run._divergence(calibration, work) for run in (plain_run, scaled[0])]
        return scaled if found[1] < found[0] else (plain_run, plain[1])

    def _mix(
        self, inputs: Sequence[ScalableInput], calibration: Calibration, work: WorkFolder, progress: Progress
    ) -> tuple[QuantizeRun, tuple[GroupReport, ...]]:
        bits, search, zero_points = self.options.bits, self.options.method != RTN, self.options.zero_points
        assert bits is not None
        roles, groups = mixed(
            self.roles, self.source.tensors, bits, zero_points, self.scale, search, inputs, calibration, work, progress
        )
        return replace(self, roles=roles), groups

    def _divergence(self, calibration: Calibration, work: WorkFolder) -> float:
        """The mean KL divergence with all matrices quantised by a mix, as they are written."""
        step = f"divergence of {self.options.method}"
        if work.result(step) is None:
            inputs = self.inputs if self.options.method == AWQ else ()
            scales = scales_of_layers(self.source.tensors, self.roles.schemes, self.scale, inputs, calibration)
            context = MatrixContext(self.scale, search=True)
            weights = {
                module: partial(
                    products_of, ScaledTensor(slot, scales.get(slot.name)), self.roles.schemes[module], context
                )
                for module, slot in self.slots.items()
            }
            work.finish(step, Sensitivity(calibration).divergence(weights))
        return float(work.result(step))

    def calibration(self, work: WorkFolder, progress: Progress) -> Calibration | None:
        """The model and its windows; None for methods that need none. CheckpointError: as ``check_weights``."""
        if not self.options.is_calibrated:
            return None
        known, text = work.result(_WINDOWS), self.options.text
        windows = None if known is None else [np.array(window, np.int64) for window in known]
        if windows is None and text is not None:
            windows = text_windows(self.source.path, Path(text))
        check_weights(self.source.tensors, self.roles.schemes, progress)
        found = Calibration(self.source.path, windows, self.options.device, progress)
        if known is None:
            work.finish(_WINDOWS, [window.tolist() for window in found.windows])
        return found

    def shards(self, work: WorkFolder, progress: Progress) -> dict[str, TensorSlot]:
        """All tensors of the new files, of which quantised ones are still to be written."""
        progress.start("copy other weights")
        steps = {shard.path.name: f"file {shard.path.name}" for shard in self.source.shards}
        known = {name: work.result(step) for name, step in steps.items()}
        if not all(header is None or _has_header(work.folder / name, header) for name, header in known.items()):
            # The run was killed while its files were moved to the output, or they were damaged since.
            work.forget([*steps.values(), *(unit.name for unit in units_of(self.roles.schemes))])
        placed: dict[str, TensorSlot] = {}
        for shard in self.source.shards:
            target = work.folder / shard.path.name
            if work.result(steps[shard.path.name]):
                placed |= read_safetensors(target).tensors
                continue
            target.unlink(missing_ok=True)
            created = create_shard(shard, target, self.roles.schemes, self.scale, progress)
            sync_path(target)
            work.finish(steps[shard.path.name], created.header_sha256)
            placed |= created.tensors
        return placed

    def matrices(
        self,
        placed: Mapping[str, TensorSlot],
        calibration: Calibration | None,
        work: WorkFolder,
        progress: Progress,
    ) -> list[MatrixReport]:
        """Quantise all matrices into the files with the tensors ``placed``, one layer after another."""
        needed = calibration if self.options.method in (AWQ, GPTQ) else None
        layers = LayerQuantizer(self.source.tensors, placed, self.roles, self.scale, self.options, self.inputs, needed)
        slots, units = self.slots, units_of(self.roles.schemes)
        reused = [unit for unit in units if work.result(unit.name) is not None]
        stage = f"quantise ({len(reused)} of {len(units)} layers are reused)" if reused else "quantise"
        progress.start(stage, sum(slot.nbytes for slot in slots.values()), "B")
        found: dict[str, MatrixReport] = {}
        for unit in units:
            known = work.result(unit.name)
            if known is None:
                reports = layers.run(unit, progress.advance)
                for path in {slot.path for slot in placed.values()}:
                    sync_path(path)
                work.finish(unit.name, [asdict(report) for report in reports])
            else:
                reports = [MatrixReport(**report) for report in known]
                progress.advance(sum(slots[module].nbytes for module in unit.modules))
            found |= {report.module: report for report in reports}
        for shard in self.source.shards:
            check_unchanged(shard)
        return [found[module] for module in slots]


def _has_header(path: Path, sha256: str) -> bool:
    """Whether ``path`` is a whole file with the header of this hash."""
    try:
        return read_safetensors(path).header_sha256 == sha256
    except (CheckpointError, UnsupportedError):
        return False
