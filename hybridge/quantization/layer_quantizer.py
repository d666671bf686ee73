"""Quantise the matrices of one layer and write them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from hybridge.artifact.dtypes import DType
from hybridge.artifact.safetensors_file import TensorSlot
from hybridge.exporter.rounding.siblings import shared_peaks
from hybridge.quantization.awq import ScaleSearch
from hybridge.quantization.calibration import Calibration
from hybridge.quantization.input_products import InputProducts, Products
from hybridge.quantization.input_scaling import ScalableInput
from hybridge.quantization.matrix import MatrixReport
from hybridge.quantization.options import AWQ, GPTQ, RTN, QuantizeOptions
from hybridge.quantization.roles import Roles
from hybridge.quantization.scaled import ScaledTensor, TensorScale
from hybridge.quantization.scheme import MatrixContext
from hybridge.quantization.schemes import NvFp4Scheme
from hybridge.quantization.shard import fill_matrix, fill_tensor
from hybridge.quantization.units import Unit


class LayerQuantizer:
    """Quantises ``tensors`` into files with the tensors ``placed``, by ``roles``.

    scale: the type of scales. inputs: the ones that awq may scale. calibration: None for methods that need none.
    """

    def __init__(
        self,
        tensors: Mapping[str, TensorSlot],
        placed: Mapping[str, TensorSlot],
        roles: Roles,
        scale: DType,
        options: QuantizeOptions,
        inputs: Iterable[ScalableInput],
        calibration: Calibration | None,
    ) -> None:
        self._tensors, self._placed, self._roles, self._scale = tensors, placed, roles, scale
        self._options, self._inputs, self._calibration = options, list(inputs), calibration

    def run(self, unit: Unit, advance: Callable[[int], None]) -> list[MatrixReport]:
        """Write the tensors of ``unit``; reports the bytes of each matrix to ``advance``.

        EngineError: inputs over the text are not finite. CheckpointError: a weight is not finite, or the file damaged.
        """
        products = self._products(unit)
        scales = self._scales(unit, products)
        matrices = {module: self._scaled(f"{module}.weight", scales) for module in unit.modules}
        peaks = self._peaks(matrices)
        found: dict[str, MatrixReport] = {}
        shared = [] if products is None or self._options.method != GPTQ else products.groups
        alone = set(unit.modules) - {module for each in shared for module in each.modules}
        for group in [*shared, Products([module for module in unit.modules if module in alone])]:
            factor = None if group.sums is None else group.factor()
            for module in group.modules:
                context = MatrixContext(self._scale, self._options.method != RTN, peaks.get(module, 0.0), factor)
                found[module] = fill_matrix(matrices[module], self._placed, self._roles.schemes[module], context)
                advance(matrices[module].slot.nbytes)
        for name in scales:
            if name.removesuffix(".weight") not in matrices:
                fill_tensor(self._scaled(name, scales), self._placed[name])
        return [found[module] for module in unit.modules]

    def _products(self, unit: Unit) -> InputProducts | None:
        if self._calibration is None:
            return None
        if self._options.method == GPTQ:
            return self._calibration.products(unit.layer, self._calibration.layers_of(unit.modules))
        if unit.layer is None:
            return None
        names = [name for each in self._inputs if each.layer == unit.layer for name in each.consumers]
        return self._calibration.products(unit.layer, [name.removesuffix(".weight") for name in names])

    def _scales(self, unit: Unit, products: InputProducts | None) -> dict[str, TensorScale]:
        if self._options.method != AWQ or products is None:
            return {}
        search = ScaleSearch(self._tensors, self._roles.schemes, self._scale)
        return search.scales([each for each in self._inputs if each.layer == unit.layer], products)

    def _scaled(self, name: str, scales: Mapping[str, TensorScale]) -> ScaledTensor:
        return ScaledTensor(self._tensors[name], scales.get(name))

    def _peaks(self, matrices: Mapping[str, ScaledTensor]) -> dict[str, float]:
        """The largest magnitude of each module whose scheme has a scale for the whole weight."""
        schemes = self._roles.schemes
        return shared_peaks({m: each.peak() for m, each in matrices.items() if isinstance(schemes[m], NvFp4Scheme)})
