"""A mix of schemes of a given number of bits per weight, chosen by how much each group of matrices matters."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np

from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import SettingError
from hybridge.artifact.progress import Progress
from hybridge.artifact.safetensors_file import TensorSlot
from hybridge.exporter.rounding.blocks import float32_rows, in_threads, row_blocks
from hybridge.exporter.rounding.roles import GROUP_SIZES, group_size
from hybridge.exporter.rounding.siblings import groups_of
from hybridge.quantization.awq import scales_of_layers
from hybridge.quantization.budget import Choice, chosen
from hybridge.quantization.calibration import Calibration
from hybridge.quantization.input_scaling import ScalableInput
from hybridge.quantization.roles import Roles
from hybridge.quantization.scaled import ScaledTensor, TensorScale
from hybridge.quantization.scheme import MatrixContext, Scheme
from hybridge.quantization.schemes import IntegerScheme
from hybridge.quantization.sensitivity import Sensitivity
from hybridge.quantization.work_folder import WorkFolder

# Group size of the int4 scheme whose divergence is measured; others are estimated by their squared errors.
_MEASURED = 32
# Weights of a matrix that its error is estimated from.
_SAMPLE = 1 << 18


@dataclass(frozen=True)
class GroupReport:
    """Matrices that share a scheme ("": not quantised): their number, the number of their weights, the mean KL
    divergence in nats with only them in 4 bits, and the bits per weight with scales.
    """

    name: str
    matrices: int
    weights: int
    divergence: float
    scheme: str
    bits: float


@dataclass(frozen=True)
class _Group:
    name: str
    slots: Mapping[str, TensorSlot]
    zero_points: bool

    @property
    def weights(self) -> int:
        return sum(math.prod(slot.shape) for slot in self.slots.values())

    def schemes(self) -> list[Scheme]:
        """The schemes that fit every matrix of the group, the smallest one first."""
        columns = math.gcd(*(slot.shape[1] for slot in self.slots.values()))
        sizes: list[int | None] = [size for size in GROUP_SIZES if columns % size == 0]
        small = [IntegerScheme(4, size, self.zero_points) for size in sizes or [None]]
        # The export does not read 4-bit rows of an odd length.
        is_odd = any(slot.shape[1] % 2 for slot in self.slots.values())
        return [*([] if is_odd else small), IntegerScheme(8, group_size(columns, 128))]

    def nbytes(self, scheme: Scheme | None, scale: DType) -> int:
        if scheme is None:
            return sum(slot.nbytes for slot in self.slots.values())
        parts = [scheme.layout(*_shape(slot), scale).values() for slot in self.slots.values()]
        return sum(dtype.nbytes(math.prod(shape)) for each in parts for dtype, shape in each)

    def squared_error(self, scheme: Scheme, scale: DType) -> float:
        """The squared error of all weights, estimated from some rows of each matrix."""
        return sum(_sampled_error(slot, scheme, scale) for slot in self.slots.values())


def mixed(
    roles: Roles,
    tensors: Mapping[str, TensorSlot],
    bits: float,
    zero_points: bool,
    scale: DType,
    search: bool,
    inputs: Sequence[ScalableInput],
    calibration: Calibration,
    work: WorkFolder,
    progress: Progress,
) -> tuple[Roles, tuple[GroupReport, ...]]:
    """``roles`` with schemes for its modules that take ``bits`` per weight on average, and their groups.

    tensors: all of the checkpoint. zero_points: of int4. search: measure with the scales of least squared error.
    inputs: those that awq scales, which are scaled in the measurements too. ``check_bits`` must have accepted ``bits``.
    work: has the sensitivities that were measured before.
    """
    groups = _groups({module: tensors[f"{module}.weight"] for module in roles.schemes}, zero_points)
    weights = sum(group.weights for group in groups)
    measure = _Measurement(groups, tensors, MatrixContext(scale, search), inputs, calibration)
    divergences = _divergences(groups, measure, work, progress)
    all_divergences = _with_averages(groups, divergences)
    options = {group.name: _choices(group, scale, all_divergences[group.name]) for group in groups}
    found = chosen(options, round(bits * weights / 8))
    schemes = {module: found[g.name].scheme for g in groups for module in g.slots}
    quantised = {module: scheme for module, scheme in schemes.items() if scheme is not None}
    left = [module for module, scheme in schemes.items() if scheme is None]
    reports = tuple(_report(group, all_divergences[group.name], found[group.name]) for group in groups)
    return replace(roles, schemes=quantised, ignored=[*roles.ignored, *left]), reports


def _divergences(
    groups: Sequence[_Group], measure: _Measurement, work: WorkFolder, progress: Progress
) -> dict[str, float | None]:
    """Group to its measured divergence; those that ``work`` has are not measured again."""
    steps = {group.name: f"sensitivity of {group.name}{measure.suffix}" for group in groups}
    reused = sum(work.result(step) is not None for step in steps.values())
    stage = f"measure sensitivities ({reused} are reused)" if reused else "measure sensitivities"
    progress.start(stage, len(groups))
    progress.advance(reused)
    for group in measure.ordered([group for group in groups if work.result(steps[group.name]) is None]):
        work.finish(steps[group.name], [measure.divergence(group)])
        progress.advance()
    return {name: work.result(step)[0] for name, step in steps.items()}


def check_bits(bits: float, slots: Mapping[str, TensorSlot], scale: DType, zero_points: bool) -> None:
    """SettingError if the modules in ``slots`` need more bits per weight than ``bits``."""
    groups = _groups(slots, zero_points)
    weights = sum(group.weights for group in groups)
    least = 8 * sum(group.nbytes(group.schemes()[0], scale) for group in groups) / weights
    if bits < least:
        raise SettingError(f"bits: expected {math.ceil(100 * least) / 100:.2f} or more for this model, found {bits:g}")


def _groups(slots: Mapping[str, TensorSlot], zero_points: bool) -> list[_Group]:
    return [
        _Group(name, {each: slots[each] for each in names}, zero_points) for name, names in groups_of(slots).items()
    ]


def _report(group: _Group, divergence: float, choice: Choice) -> GroupReport:
    name = "" if choice.scheme is None else choice.scheme.name
    bits = round(8 * choice.nbytes / group.weights, 4)
    return GroupReport(group.name, len(group.slots), group.weights, divergence, name, bits)


def _measured_scheme(group: _Group) -> Scheme:
    measured = IntegerScheme(4, _MEASURED, group.zero_points)
    return measured if measured in group.schemes() else group.schemes()[0]


def _choices(group: _Group, scale: DType, divergence: float) -> list[Choice]:
    base = group.squared_error(_measured_scheme(group), scale) or 1.0
    found = [
        Choice(scheme, group.nbytes(scheme, scale), divergence * group.squared_error(scheme, scale) / base)
        for scheme in group.schemes()
    ]
    return [*found, Choice(None, group.nbytes(None, scale), 0.0)]


class _Measurement:
    """Measures the divergence of one of ``groups`` alone in 4 bits; all else as ``mixed``."""

    def __init__(
        self,
        groups: Sequence[_Group],
        tensors: Mapping[str, TensorSlot],
        context: MatrixContext,
        inputs: Sequence[ScalableInput],
        calibration: Calibration,
    ) -> None:
        self._groups, self._tensors, self._context = groups, tensors, context
        self._inputs, self._calibration = inputs, calibration
        self.suffix = ", scaled" if inputs else ""

    def ordered(self, groups: Sequence[_Group]) -> list[_Group]:
        """``groups`` in the order in which they are measured fastest."""
        return sorted(groups, key=lambda group: self._sensitivity.first_layer(group.slots)) if groups else []

    def divergence(self, group: _Group) -> float | None:
        """The divergence with ``group`` quantised; None if a module has no linear layer of its own in transformers."""
        if len(self._calibration.layers_of(group.slots)) < len(group.slots):
            return None
        scheme = _measured_scheme(group)
        weights = {module: ScaledTensor(slot, self._scales.get(slot.name)) for module, slot in group.slots.items()}
        return self._sensitivity.divergence(
            {module: partial(products_of, weight, scheme, self._context) for module, weight in weights.items()}
        )

    @cached_property
    def _sensitivity(self) -> Sensitivity:
        return Sensitivity(self._calibration)

    @cached_property
    def _scales(self) -> Mapping[str, TensorScale]:
        """The scales that awq finds where all groups are in 4 bits."""
        schemes = {module: _measured_scheme(group) for group in self._groups for module in group.slots}
        return scales_of_layers(self._tensors, schemes, self._context.scale, self._inputs, self._calibration)


def _with_averages(groups: Sequence[_Group], found: Mapping[str, float | None]) -> dict[str, float]:
    """The divergences of all groups: those not measured get the measured average per weight."""
    measured = [(group.weights, value) for group in groups if (value := found[group.name]) is not None]
    total = sum(weights for weights, _ in measured)
    average = sum(value for _, value in measured) / total if total else 1.0
    return {g.name: average * g.weights if (value := found[g.name]) is None else value for g in groups}


def products_of(weight: ScaledTensor, scheme: Scheme, context: MatrixContext) -> np.ndarray:
    """``weight`` after rounding, float32 [rows, columns], without its scales of rows and columns."""

    def rounded(part: slice) -> np.ndarray:
        return weight.unscaled(scheme.rows(weight.rows(part), context).products, part)

    return np.concatenate(list(in_threads(rounded, row_blocks(*_shape(weight.slot)))))


def _sampled_error(slot: TensorSlot, scheme: Scheme, scale: DType) -> float:
    rows, columns = _shape(slot)
    step = max(1, rows * columns // _SAMPLE)
    weights = float32_rows(slot, slice(0, rows, step))
    difference = scheme.rows(weights, MatrixContext(scale, search=False)).products - weights
    return float(np.square(difference).mean(dtype=np.float64)) * rows * columns


def _shape(slot: TensorSlot) -> tuple[int, int]:
    rows, columns = slot.shape
    return rows, columns
