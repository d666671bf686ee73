"""Computes a described network, layer by layer.

Each layer computes in float32 and its outputs are rounded to their declared types, as in a strongly typed network.
Tensors on torch's device "meta" have a shape and no values: a run with such inputs only evaluates shapes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from hybridge.artifact.errors import EngineError, HybridgeError
from hybridge.runtime.engines.tensorrt_network.aliases import find_aliases
from hybridge.runtime.engines.tensorrt_network.element_types import torch_type
from hybridge.runtime.engines.tensorrt_network.kinds import KINDS
from hybridge.runtime.engines.tensorrt_network.layer_call import Kind, LayerCall
from hybridge.runtime.engines.tensorrt_network.loops import run_loop
from hybridge.runtime.engines.tensorrt_network.plugins import PLUGIN_KIND
from hybridge.runtime.engines.tensorrt_network.schedule import LoopStep, Step, scheduled
from hybridge.trt_plugins.network.description import CONSTANT, LOOP_KINDS, PLUGIN, NetworkDescription, NetworkLayer


class NetworkInterpreter:
    """A network, ready to run. ``widen``: compute 16-bit floats in float32."""

    def __init__(
        self,
        description: NetworkDescription,
        constants: Mapping[str, Tensor],
        widen: bool = False,
        plugins: Kind = PLUGIN_KIND,
    ) -> None:
        """``constants``: by tensor name. plugins: what computes plugins. EngineError for an unsupported kind of
        layer."""
        self.description, self._widen, self._plugins = description, widen, plugins
        computed = [layer for layer in description.layers if layer.kind != CONSTANT]
        for layer in computed:
            if layer.kind not in LOOP_KINDS:
                kind_of(layer)
        self.aliases = find_aliases(description)
        self._values: dict[str, Tensor] = dict(constants)
        steps = self._folded(scheduled(computed))
        self._steps = tuple(zip(steps, _last_uses(steps, {*description.outputs, *self._values}), strict=True))

    def input_type(self, name: str) -> torch.dtype:
        """The torch type of the network's input ``name``."""
        return torch_type(self.description.tensors[name].dtype, self._widen)

    def run(self, inputs: Mapping[str, Tensor], shown: Collection[str] = ()) -> dict[str, Tensor]:
        """The outputs and the inner tensors ``shown`` by name; states that the network updates in place are updated.

        Inputs have the types of ``input_type`` and the shapes of the network. EngineError naming the layer that fails
        or whose output differs in shape from what TensorRT inferred.
        """
        values = {**self._values, **inputs}
        for name in self.description.inputs:
            self._check(f"input {name}", name, values[name])
        collected: dict[str, Tensor] = {}
        for step, last_used in self._steps:
            self.run_step(step, values)
            collected |= {name: values[name] for name in shown if name in last_used}
            for name in last_used:
                del values[name]
        return {
            name: collected[name] if name in collected else values[name] for name in (*self.description.outputs, *shown)
        }

    def run_step(self, step: Step, values: dict[str, Tensor]) -> None:
        """Add the outputs of ``step`` to ``values``."""
        if isinstance(step, LoopStep):
            run_loop(step, values, self.run_step)
            return
        outputs = self._outputs(step, values)
        changes = self.aliases.changed_by.get(step.name, ())
        if not changes:
            outputs = self._apart(step, outputs, values)
        values.update(zip(step.outputs, outputs, strict=True))

    def _outputs(self, layer: NetworkLayer, values: Mapping[str, Tensor]) -> Sequence[Tensor]:
        kind = self._plugins if layer.kind == PLUGIN else kind_of(layer)
        inputs = [None if name is None else values[name] for name in layer.inputs]
        if any(value is not None and value.is_meta for value in inputs):
            inputs = _on_meta(layer, kind, inputs)
        dtypes = [torch_type(self.description.tensors[name].dtype, self._widen) for name in layer.outputs]
        call = LayerCall(layer, inputs, dtypes, self.aliases.in_place(layer))
        try:
            found = kind.compute(call)
        except HybridgeError:
            raise
        except (RuntimeError, IndexError, TypeError, ValueError) as error:  # torch's errors about shapes and types
            raise call.error(" ".join(str(error).split())[:300]) from error
        outputs = found if isinstance(found, tuple) else (found,)
        rounded = [value.to(dtype) for value, dtype in zip(outputs, dtypes, strict=True)]
        for name, value in zip(layer.outputs, rounded, strict=True):
            self._check(layer.title, name, value)
        return rounded

    def _apart(self, layer: NetworkLayer, outputs: Sequence[Tensor], values: Mapping[str, Tensor]) -> Sequence[Tensor]:
        """``outputs``, copied where they share memory with an input that changes later."""
        changing = [values[name] for name in layer.inputs if name in self.aliases.changing]
        memory = {value.untyped_storage().data_ptr() for value in changing if not value.is_meta}
        return [o.clone() if not o.is_meta and o.untyped_storage().data_ptr() in memory else o for o in outputs]

    def _check(self, where: str, name: str, value: Tensor) -> None:
        declared = self.description.tensors[name].shape
        found = tuple(value.shape)
        if len(found) != len(declared) or any(d not in (-1, n) for d, n in zip(declared, found, strict=True)):
            raise EngineError(f"{where}: expected {name} of shape {list(declared)}, found {list(found)}")

    def _folded(self, steps: Sequence[Step]) -> tuple[Step, ...]:
        """``steps`` without those whose inputs are all constant: their outputs become constants."""
        left: list[Step] = []
        for step in steps:
            constant = isinstance(step, NetworkLayer) and step.kind != PLUGIN
            if constant and all(name is None or name in self._values for name in step.inputs):  # type: ignore[union-attr]
                self.run_step(step, self._values)
            else:
                left.append(step)
        needed = {name for step in left for name in _names_read(step)} | set(self.description.outputs)
        self._values = {name: value for name, value in self._values.items() if name in needed}
        return tuple(left)


def kind_of(layer: NetworkLayer) -> Kind:
    """The kind of ``layer``; EngineError if it is not supported."""
    found = PLUGIN_KIND if layer.kind == PLUGIN else KINDS.get(layer.kind)
    if found is None:
        raise EngineError(
            f"{layer.title}: expected one of the kinds {', '.join(KINDS)}, found another: report the artifact's family"
        )
    return found


def _on_meta(layer: NetworkLayer, kind: Kind, inputs: Sequence[Tensor | None]) -> list[Tensor | None]:
    """``inputs`` without values; those that determine shapes keep theirs. EngineError if one of these has none."""
    for index in kind.shape_inputs:
        if index < len(inputs) and (value := inputs[index]) is not None and value.is_meta:
            raise EngineError(
                f"{layer.title}: expected a shape computed from shapes alone, found one computed from values"
            )
    return [v if v is None or i in kind.shape_inputs else v.to("meta") for i, v in enumerate(inputs)]


def _names_read(step: Step) -> Iterator[str]:
    if isinstance(step, LoopStep):
        for layer in (*step.limits, *step.recurrences, *step.iterators, *step.results):
            yield from (name for name in layer.inputs if name is not None)
        for inner in step.body:
            yield from _names_read(inner)
    else:
        yield from (name for name in step.inputs if name is not None)


def _last_uses(steps: Sequence[Step], needed: Collection[str]) -> list[list[str]]:
    """By step, the tensors that no later step reads, except those of ``needed``."""
    last: dict[str, int] = {}
    for index, step in enumerate(steps):
        for name in (*_names_read(step), *step.outputs):
            last[name] = index
    found: list[list[str]] = [[] for _ in steps]
    # Tensors of a loop's body are not visible outside it.
    made = {name for step in steps for name in step.outputs}
    for name, index in last.items():
        if name in made and name not in needed:
            found[index].append(name)
    return found
