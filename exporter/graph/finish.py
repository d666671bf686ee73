"""Turn the traced model into the exported one: stable value names, declared axes, weights by reference, no traces."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import onnx_ir as ir
from onnx_ir.passes.common import CommonSubexpressionEliminationPass, RemoveUnusedNodesPass

from artifact.bindings import Binding, GraphBindings
from artifact.dtypes import DType
from artifact.errors import ExportError
from artifact.safetensors_file import TensorSlot
from exporter.graph.translations import MARK_ATTRIBUTE, MARK_DOMAIN, MARK_OP
from exporter.models.parameters import Parameter

PRODUCER = "hybridge"


def finish_model(
    model: ir.Model,
    bindings: GraphBindings,
    parameters: tuple[Parameter, ...],
    slots: Mapping[str, TensorSlot],
    out: Path,
) -> ir.Model:
    """Finish ``model`` in place and return it.

    ``slots`` maps each graph initializer name to where its bytes lie under the artifact folder ``out``.
    ExportError when the traced graph and the declared parameters or bindings disagree.
    """
    _reference_weights(model.graph, parameters, slots, out)
    _drop_redundant_split_counts(model.graph)
    CommonSubexpressionEliminationPass()(model)
    RemoveUnusedNodesPass()(model)
    _name_marks(model.graph)
    name_axes(model.graph, bindings)
    _clear_traces(model)
    model.opset_imports.pop(MARK_DOMAIN, None)
    return model


def _reference_weights(
    graph: ir.Graph, parameters: tuple[Parameter, ...], slots: Mapping[str, TensorSlot], out: Path
) -> None:
    declared = {p.name: p for p in parameters}
    traced = dict(graph.initializers)
    missing, extra = sorted(set(declared) - set(traced)), sorted(set(traced) - set(declared))
    if missing or extra:
        raise ExportError(
            f"the traced graph misses the parameters {missing[:3]} and holds the unknown ones {extra[:3]}"
        )
    for name, value in traced.items():
        parameter = declared[name]
        if value.shape != parameter.shape:
            raise ExportError(f"{name}: expected shape {list(parameter.shape)}, the traced graph has {value.shape}")
        _reference_weight(graph, value, parameter.initializer, slots[parameter.initializer], out)


def _reference_weight(graph: ir.Graph, value: ir.Value, name: str, slot: TensorSlot, out: Path) -> None:
    """Point ``value`` at ``slot``; where the stored type differs from the compute type, a Cast follows."""
    compute = value.dtype
    stored = ir.DataType(slot.dtype.onnx)
    del graph.initializers[value.name or ""]
    tensor = ir.ExternalTensor(
        location=slot.path.relative_to(out).as_posix(),
        offset=slot.offset,
        length=slot.nbytes,
        dtype=stored,
        shape=ir.Shape(slot.shape),
        name=name,
        base_dir=out,
    )
    if stored == compute:
        value.name, value.const_value = name, tensor
        graph.register_initializer(value)
        return
    initializer = ir.Value(name=name, shape=tensor.shape, type=ir.TensorType(stored), const_value=tensor)
    graph.register_initializer(initializer)
    cast = ir.node("Cast", inputs=[initializer], attributes={"to": compute})
    cast.outputs[0].name, cast.outputs[0].shape = f"{name}.cast", tensor.shape
    cast.outputs[0].type = ir.TensorType(compute) if compute is not None else None
    value.replace_all_uses_with(cast.outputs[0])
    graph.insert_before(graph[0], cast)


def _drop_redundant_split_counts(graph: ir.Graph) -> None:
    """A Split with explicit sizes must not carry num_outputs as well."""
    for node in graph:
        if node.op_type == "Split" and len(node.inputs) == 2:
            node.attributes.pop("num_outputs", None)


def _name_marks(graph: ir.Graph) -> None:
    """Remove the mark nodes and give their inputs the marked names."""
    for node in list(graph):
        if (node.domain, node.op_type) != (MARK_DOMAIN, MARK_OP):
            continue
        value = node.inputs[0]
        assert value is not None
        node.outputs[0].replace_all_uses_with(value)
        value.name = node.attributes[MARK_ATTRIBUTE].as_string()
        graph.remove(node, safe=True)


def name_axes(graph: ir.Graph, bindings: GraphBindings) -> None:
    """Give inputs and outputs their declared symbolic axes, and every other value the same names."""
    renamed: dict[str, str] = {}
    for value, binding in zip(graph.inputs, bindings.inputs, strict=True):
        _check_value(value, binding)
        for dim, axis in zip(value.shape or (), binding.shape, strict=True):
            if isinstance(axis, str) and isinstance(dim, ir.SymbolicDim) and dim.value:
                renamed[str(dim.value)] = axis
    for node in graph:
        for value in node.outputs:
            _rename_axes(value, renamed)
    for value, binding in (
        *zip(graph.inputs, bindings.inputs, strict=True),
        *zip(graph.outputs, bindings.outputs, strict=True),
    ):
        _check_value(value, binding)
        value.shape = ir.Shape(binding.shape)


def _rename_axes(value: ir.Value, renamed: Mapping[str, str]) -> None:
    if value.shape is None:
        return
    dims = [renamed.get(str(d.value)) if isinstance(d, ir.SymbolicDim) else d for d in value.shape]
    value.shape = ir.Shape(dims)


def _check_value(value: ir.Value, binding: Binding) -> None:
    found = (value.name, DType.from_onnx(int(value.dtype or 0)), len(value.shape or ()))
    declared = (binding.name, binding.dtype, len(binding.shape))
    if found != declared:
        raise ExportError(f"declared binding (name, type, rank) {declared}, the traced graph has {found}")


def _clear_traces(model: ir.Model) -> None:
    """Drop what the tracer noted about source files and torch nodes; it would name paths of this machine."""
    model.producer_name, model.producer_version, model.doc_string = PRODUCER, None, None
    model.metadata_props.clear()
    graph = model.graph
    graph.name = PRODUCER
    graph.metadata_props.clear()
    graph.doc_string = None
    for value in (*graph.inputs, *graph.outputs, *graph.initializers.values()):
        value.metadata_props.clear()
        value.doc_string = None
    for node in graph:
        node.metadata_props.clear()
        node.doc_string = None
        for value in node.outputs:
            value.metadata_props.clear()
            value.doc_string = None
