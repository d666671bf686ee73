"""Runs a module on tensors without memory and records ONNX nodes for every operator of torch that it calls."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import onnx_ir as ir
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from hybridge.artifact.errors import ExportError
from hybridge.exporter.ops.aten_results import RESULTS
from hybridge.exporter.ops.recorder import OPSET, recording

# Extents of symbolic axes while tracing: larger than any static one, and all different, so that each stands for its
# axis wherever it appears.
LEAST_EXTENT = 1 << 20
_IR_VERSION = 10


class _Mode(TorchDispatchMode):
    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Where torch asks: no, it would import its compiler to tell it to leave this class alone."""
        return False


class Unfilled(_Mode):
    """While entered, inside ``torch.inference_mode``, modules are made without random weights.

    Where tensors have no memory, torch would import its compiler to fill them.
    """

    def __torch_dispatch__(
        self, func: Any, types: Iterable[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func in (torch.ops.aten.normal_.default, torch.ops.aten.uniform_.default):
            return args[0]
        return func(*args, **(kwargs or {}))


class Tracer(_Mode):
    """While entered, inside ``torch.inference_mode``, records what is computed from the tensors of ``bind``.

    There torch hands over its operators as they are called; elsewhere it takes ``linear`` apart first, for example.
    ``translations``: by operator, a function of its arguments that records nodes and returns its results; it gets
    values for tensors, and symbolic axes for their extents. ``axes``: names of symbolic axes by extent. ExportError
    names an operator without translation, or a size that was computed from a symbolic one.
    """

    def __init__(self, translations: Mapping[Any, Callable[..., Any]], axes: Mapping[int, str]) -> None:
        super().__init__()
        self.nodes: list[ir.Node] = []
        self._translations, self._axes = translations, axes
        # Extents of the tensors of ``bind``.
        self._extents: set[int] = set()
        # By identity of a tensor, which is kept alive, so that no other one gets its identity.
        self._values: dict[int, tuple[torch.Tensor, ir.Value]] = {}

    def bind(self, tensor: torch.Tensor, name: str) -> ir.Value:
        """A value of the type and shape of ``tensor``, which stands for it from now on."""
        value = ir.Value(name=name)
        self._extents.update(tensor.shape)
        self._describe(value, tensor)
        self._values[id(tensor)] = tensor, value
        return value

    def value(self, tensor: torch.Tensor) -> ir.Value:
        """What stands for ``tensor``."""
        if id(tensor) not in self._values:
            raise ExportError(
                f"a tensor {list(tensor.shape)} is no parameter and was not computed: make it one of them"
            )
        return self._values[id(tensor)][1]

    def __torch_dispatch__(
        self, func: Any, types: Iterable[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        results = RESULTS.get(func, func)(*args, **kwargs)
        translation = self._translations.get(func)
        if translation is None:
            raise ExportError(f"the operator {func} has no translation to ONNX: add it to exporter/ops/aten.py")
        given, named = [self._argument(each) for each in args], {k: self._argument(v) for k, v in kwargs.items()}
        with recording(self.nodes):
            values = translation(*given, **named)
        if isinstance(results, torch.Tensor):
            self._keep(results, values)
        else:
            for result, value in zip(results, values, strict=True):
                self._keep(result, value)
        return results

    def _keep(self, tensor: torch.Tensor, value: ir.Value) -> None:
        if value.type is None:
            self._describe(value, tensor)
        self._values[id(tensor)] = tensor, value

    def _describe(self, value: ir.Value, tensor: torch.Tensor) -> None:
        for n in tensor.shape:
            if n >= LEAST_EXTENT and n not in self._extents:
                raise ExportError(
                    f"{value.name} has an axis of {n}, computed from symbolic ones: keep these as they are"
                )
        value.type = ir.TensorType(ir.tensor_adapters.from_torch_dtype(tensor.dtype))
        value.shape = ir.Shape([self._axis(n) for n in tensor.shape])

    def _axis(self, extent: int) -> int | ir.SymbolicDim:
        return ir.SymbolicDim(self._axes[extent]) if extent in self._axes else extent

    def _argument(self, argument: Any) -> Any:
        if isinstance(argument, torch.Tensor):
            return self.value(argument)
        if isinstance(argument, (list, tuple)):
            return [self._argument(each) for each in argument]
        return self._axis(argument) if type(argument) is int else argument


def model_of(
    inputs: Sequence[ir.Value],
    outputs: Sequence[ir.Value],
    nodes: Sequence[ir.Node],
    initializers: Sequence[ir.Value] = (),
) -> ir.Model:
    """The model of recorded ``nodes``."""
    versions = {"": OPSET, **{node.domain: node.version or OPSET for node in nodes}}
    graph = ir.Graph(inputs, outputs, nodes=nodes, initializers=initializers, opset_imports=versions, name="traced")
    return ir.Model(graph, ir_version=_IR_VERSION)
