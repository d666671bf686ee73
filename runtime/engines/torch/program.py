"""A graph as a list of torch calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import onnx_ir as ir
import torch

from hybridge.artifact.bindings import Binding
from hybridge.artifact.errors import EngineError
from hybridge.runtime.engines.torch.kernels import KernelRunner
from hybridge.runtime.engines.torch.node_context import NodeContext, Run
from hybridge.runtime.engines.torch.ops import builder_of
from hybridge.runtime.engines.torch.weights import FOUR_BITS, WeightStore


@dataclass(frozen=True)
class Step:
    """One call. Inputs (None: absent) and outputs are slots; ``done`` are slots that no later step reads."""

    name: str
    run: Run
    inputs: tuple[int | None, ...]
    outputs: tuple[int, ...]
    done: tuple[int, ...]


class StepProgram(Protocol):
    """The program of a step. extra: inputs stored with the step's own, in addition to those of every graph."""

    extra: tuple[Binding, ...]

    def run(self, feeds: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        """As ``Program.run``."""


class Program:
    """Runs steps over slots, each of which holds one value. Tensors go as soon as nothing reads them."""

    extra: tuple[Binding, ...] = ()

    def __init__(
        self, steps: Sequence[Step], constants: Mapping[int, Any], inputs: Mapping[str, int], outputs: Mapping[str, int]
    ) -> None:
        self.steps = tuple(steps)
        self._constants, self._inputs, self._outputs = dict(constants), dict(inputs), dict(outputs)
        slots = [*constants, *inputs.values(), *outputs.values(), *(slot for step in steps for slot in step.outputs)]
        self._initial: list[Any] = [None] * (max(slots, default=-1) + 1)
        for slot, value in constants.items():
            self._initial[slot] = value

    @property
    def inputs(self) -> frozenset[str]:
        """Names of the inputs that steps read."""
        return frozenset(self._inputs)

    def run(self, feeds: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        """The outputs for ``feeds``, which has a value for every input and may have more."""
        values = self._initial.copy()
        for name, slot in self._inputs.items():
            values[slot] = feeds[name]
        for step in self.steps:
            result = step.run(*[None if slot is None else values[slot] for slot in step.inputs])
            if len(step.outputs) == 1:
                values[step.outputs[0]] = result
            else:
                for slot, value in zip(step.outputs, result, strict=True):
                    values[slot] = value
            for slot in step.done:
                values[slot] = None
        return {name: values[slot] for name, slot in self._outputs.items()}


def compile_program(
    inputs: Sequence[ir.Value],
    outputs: Sequence[ir.Value],
    weights: WeightStore,
    kernels: KernelRunner | None = None,
) -> Program:
    """The program that computes ``outputs`` from ``inputs``, values of one graph in topological order, and from
    constants.

    Nodes whose inputs are all constant are computed now. EngineError naming an operator or attribute that this engine
    does not know, or an input that is missing.
    """
    return _Compiler(weights, kernels).compile(inputs, outputs)


class _Compiler:
    def __init__(self, weights: WeightStore, kernels: KernelRunner | None) -> None:
        self._weights, self._kernels = weights, kernels
        self._constants: dict[ir.Value, torch.Tensor] = {}
        self._slots: dict[ir.Value, int] = {}
        self._calls: list[tuple[str, Run, list[ir.Value | None], list[ir.Value]]] = []

    def compile(self, inputs: Sequence[ir.Value], outputs: Sequence[ir.Value]) -> Program:
        given = set(inputs)
        for node in _needed_nodes(given, outputs):
            self._add(node)
        read = {value for _, _, values, _ in self._calls for value in values if value is not None} | set(outputs)
        feeds = [value for value in inputs if value in read]
        constants = {
            self._slot(value): self._weights.on_device(tensor)
            for value, tensor in self._constants.items()
            if value in read
        }
        return Program(
            self._steps(set(outputs)),
            constants,
            {str(value.name): self._slot(value) for value in feeds},
            {str(value.name): self._slot(value) for value in outputs},
        )

    def _add(self, node: ir.Node) -> None:
        folded = self._weights.folded
        if all(str(value.name) in folded for value in node.outputs):
            self._constants.update({value: folded[str(value.name)] for value in node.outputs})
            return
        for value in node.inputs:
            if value is not None and value.is_initializer() and value not in self._constants:
                self._constants[value] = self._weights.tensor(value)
        context = NodeContext(node, self._weights.device, self._kernels)
        run = builder_of(node)(context)
        context.attributes.finish()
        inputs = context.inputs
        if all(value is None or value in self._constants for value in inputs):
            self._fold(node, run, inputs)
        else:
            self._calls.append((f"{node.op_type} {node.outputs[0].name}", run, inputs, list(node.outputs)))

    def _fold(self, node: ir.Node, run: Run, inputs: list[ir.Value | None]) -> None:
        result = run(*[None if value is None else self._constants[value] for value in inputs])
        results = [result] if len(node.outputs) == 1 else result
        for value, tensor in zip(node.outputs, results, strict=True):
            self._constants[value] = self._weights.folded[str(value.name)] = tensor
        for source in inputs:
            if source is not None and source.dtype in FOUR_BITS:  # unpacked for this node alone
                self._constants.pop(source, None)

    def _steps(self, retained: set[ir.Value]) -> list[Step]:
        """The calls with their slots; each knows which values it is the last to use."""
        steps, seen = [], set(retained) | set(self._constants)
        for name, run, inputs, outputs in reversed(self._calls):
            done = {value for value in (*inputs, *outputs) if value is not None and value not in seen}
            seen |= done
            steps.append(
                Step(
                    name,
                    run,
                    tuple(None if value is None else self._slot(value) for value in inputs),
                    tuple(self._slot(value) for value in outputs),
                    tuple(sorted(self._slot(value) for value in done)),
                )
            )
        return steps[::-1]

    def _slot(self, value: ir.Value) -> int:
        return self._slots.setdefault(value, len(self._slots))


def _needed_nodes(given: set[ir.Value], outputs: Sequence[ir.Value]) -> list[ir.Node]:
    """The nodes between ``given`` and ``outputs``, in the order of their graph."""
    found: dict[ir.Node, None] = {}
    waiting = list(outputs)
    while waiting:
        value = waiting.pop()
        if value in given or value.is_initializer():
            continue
        node = value.producer()
        if node is None:
            raise EngineError(f"expected a graph that computes {value.name}, found none: export the checkpoint again")
        if node not in found:
            found[node] = None
            waiting += [item for item in node.inputs if item is not None]
    graphs = {id(node.graph): node.graph for node in found}
    order = {node: index for graph in graphs.values() if graph is not None for index, node in enumerate(graph)}
    return sorted(found, key=lambda node: order[node])
