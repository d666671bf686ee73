"""Turn the traced model into the exported one: stable value names, declared axes, weights by reference, no traces."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import onnx_ir as ir
from onnx_ir.passes.common import CommonSubexpressionEliminationPass, RemoveUnusedNodesPass

from hybridge.artifact.bindings import Binding, GraphBindings
from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import ExportError, UnsupportedError
from hybridge.artifact.safetensors_file import TensorSlot
from hybridge.exporter.families.parameters import Parameter
from hybridge.exporter.ops.mark import MARK_ATTRIBUTE, MARK_DOMAIN, MARK_OP
from hybridge.exporter.trace.expert_rounding import RoundedExperts
from hybridge.exporter.trace.input_rounding import RoundedInputs
from hybridge.exporter.trace.quantized_weights import WeightNodes, edit_inputs, external_tensor, initializer
from hybridge.exporter.weights.quantized import PlacedWeight

PRODUCER = "hybridge"


def finish_model(
    model: ir.Model,
    bindings: GraphBindings,
    parameters: tuple[Parameter, ...],
    slots: Mapping[str, TensorSlot | PlacedWeight],
    out: Path,
) -> ir.Model:
    """Finish ``model`` in place and return it.

    ``slots`` maps each graph initializer name to the place of its bytes under the artifact folder ``out``.
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
    graph: ir.Graph, parameters: tuple[Parameter, ...], slots: Mapping[str, TensorSlot | PlacedWeight], out: Path
) -> None:
    declared = {p.name: p for p in parameters}

    def stored(name: str, slot: TensorSlot) -> ir.Value:
        return initializer(graph, external_tensor(name, slot, out))

    rounded, experts = RoundedInputs(graph, stored), RoundedExperts(graph, stored)
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
        placed = slots.get(parameter.initializer)
        if isinstance(placed, PlacedWeight) and placed.inputs is not None and len(parameter.shape) == 3:
            experts.add(value, parameter.initializer, placed.inputs)
        if parameter.parts and not parameter.derived:
            _join_weights(graph, value, parameter, slots, out)
        else:
            slot = slots[parameter.initializer]
            if isinstance(slot, PlacedWeight):
                _reference_quantized(graph, value, parameter.initializer, slot, out, rounded)
            else:
                _reference_weight(graph, value, parameter.initializer, slot, out)
    experts.apply()


def _reference_weight(graph: ir.Graph, value: ir.Value, name: str, slot: TensorSlot, out: Path) -> None:
    """Read ``value`` from ``slot``, with a Cast where the stored type is not the compute type.

    Parameters that layers share have one initializer.
    """
    del graph.initializers[value.name or ""]
    tensor = external_tensor(name, slot, out)
    shared = graph.initializers.get(name)
    if shared is not None and shared.dtype == value.dtype:
        value.replace_all_uses_with(shared)
        return
    if tensor.dtype == value.dtype:
        value.name, value.const_value = name, tensor
        graph.register_initializer(value)
        return
    _replace(graph, value, _cast(value, initializer(graph, tensor), name))


def _reference_quantized(
    graph: ir.Graph, value: ir.Value, name: str, weight: PlacedWeight, out: Path, rounded: RoundedInputs
) -> None:
    """Dequantise ``value`` from ``weight``, and round the inputs of its products if ``weight`` says so."""
    assert value.dtype is not None
    del graph.initializers[value.name or ""]
    builder = WeightNodes(graph, value.dtype, out)
    edited = True
    if weight.order is not None:
        edited = edit_inputs(graph, value, "Gather", builder.tensor(f"{name}_order", weight.order), axis=-1)
    if weight.factors is not None:
        edited &= edit_inputs(graph, value, "Mul", builder.tensor(f"{name}_factors", weight.factors, cast=True))
    if not edited:
        raise UnsupportedError(
            f"{name}: act-order (g_idx) and pre_quant_scale are supported where only products read the weight, found "
            "another reader: take a checkpoint without them"
        )
    if weight.inputs is not None:
        rounded.apply(value, name, weight.inputs)
    rows = builder.matrix(name, weight)
    if len(_sizes(value)) > len(weight.shape):
        builder.nodes += _stacked(rows, value, f"{name}.experts")
    _replace(graph, value, builder.nodes)


def _join_weights(
    graph: ir.Graph, value: ir.Value, parameter: Parameter, slots: Mapping[str, TensorSlot | PlacedWeight], out: Path
) -> None:
    """Let ``value`` be its parts, matrices of equal size, one after another: engines fold this when they load."""
    del graph.initializers[value.name or ""]
    assert value.dtype is not None
    name = parameter.initializer
    joined = slots.get(name)
    if isinstance(joined, PlacedWeight):
        builder = WeightNodes(graph, value.dtype, out)
        rows, nodes = builder.matrix(f"{name}.weight", joined), builder.nodes
    else:
        parts = [initializer(graph, external_tensor(part, _unquantized(slots[part]), out)) for part in parameter.parts]
        concat = ir.node("Concat", parts, {"axis": 0})
        rows, nodes = concat.outputs[0], [concat]
        sizes = _sizes(value)
        rows.name, rows.shape = f"{name}.rows", ir.Shape([sizes[0] * sizes[1], *sizes[2:]])
        rows.type = ir.TensorType(_dtype(parts[0]))
    stacked = _stacked(rows, value, name)
    casts = [] if _dtype(rows) == value.dtype else _cast(value, stacked[-1].outputs[0], name)
    _replace(graph, value, [*nodes, *stacked, *casts])


def _stacked(rows: ir.Value, value: ir.Value, name: str) -> list[ir.Node]:
    """The matrix ``rows`` in the shape of ``value``."""
    sizes, stored = _sizes(value), _dtype(rows)
    shape = ir.node("Constant", [], {"value_ints": sizes})
    stacked = ir.node("Reshape", [rows, shape.outputs[0]])
    for node, suffix, dtype, dims in ((shape, ".shape", ir.DataType.INT64, [len(sizes)]), (stacked, "", stored, sizes)):
        output = node.outputs[0]
        output.name, output.shape, output.type = f"{name}{suffix}", ir.Shape(dims), ir.TensorType(dtype)
    return [shape, stacked]


def _sizes(value: ir.Value) -> list[int]:
    return [int(size) for size in value.shape or () if isinstance(size, int)]


def _unquantized(slot: TensorSlot | PlacedWeight) -> TensorSlot:
    assert isinstance(slot, TensorSlot)
    return slot


def _dtype(value: ir.Value) -> ir.DataType:
    assert value.dtype is not None
    return value.dtype


def _cast(value: ir.Value, stored: ir.Value, name: str) -> list[ir.Node]:
    """``stored`` in the type of ``value``."""
    assert value.dtype is not None
    cast = ir.node("Cast", inputs=[stored], attributes={"to": value.dtype})
    cast.outputs[0].name, cast.outputs[0].shape = f"{name}.cast", stored.shape
    cast.outputs[0].type = ir.TensorType(value.dtype)
    return [cast]


def _replace(graph: ir.Graph, value: ir.Value, nodes: list[ir.Node]) -> None:
    """Let the output of the last of ``nodes``, which come first in the graph, take the place of ``value``."""
    value.replace_all_uses_with(nodes[-1].outputs[0])
    graph.insert_before(graph[0], nodes)


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
