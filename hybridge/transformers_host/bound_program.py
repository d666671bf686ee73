"""A traced program made fast to call: weights bound, and nodes that compute nothing removed."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

_ATEN = torch.ops.aten
_CHECKS = {
    _ATEN._assert_tensor_metadata.default,
    _ATEN._assert_scalar.default,
    _ATEN.sym_constrain_range_for_size.default,
}
# They return their first argument when shape, strides and type stay as they are.
_IDLE = {
    _ATEN.to.dtype,
    _ATEN.to.dtype_layout,
    _ATEN.to.device,
    _ATEN.contiguous.default,
    _ATEN.view.default,
    _ATEN.reshape.default,
    _ATEN.expand.default,
    _ATEN.slice.Tensor,
    _ATEN.alias.default,
}
_SHORT = 4

Program = Callable[..., tuple[torch.Tensor]]


def bind_program(program: ExportedProgram, weights: Mapping[str, torch.Tensor]) -> Program:
    """A function of the bucket's inputs and the cache's tensors, in their order; it returns the hidden states.

    ``weights`` are used where they are, and what depends on them alone is computed now; the tensors of the cache are
    updated in place.
    """
    module = GraphModule(torch.nn.Module(), program.graph)
    _bind_weights(module, program, list(weights.values()))
    for node in list(module.graph.nodes):
        if node.op == "call_function":
            _simplify(module, node)
    _fold_constants(module)
    module.graph.eliminate_dead_code(lambda node: node.op == "placeholder" or _has_effect(node))
    module.recompile()
    return module


def without_python(program: Program, arguments: Sequence[torch.Tensor]) -> Program:
    """``program`` for arguments of exactly these shapes, run by TorchScript: no Python between its operators.

    Tracing runs it on copies of ``arguments``.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.trace(program, tuple(argument.clone() for argument in arguments), check_trace=False)


def _fold_constants(module: GraphModule) -> None:
    """Compute once what depends on weights alone."""
    known: dict[Node, torch.Tensor] = {}
    for node in list(module.graph.nodes):
        if node.op == "get_attr":
            known[node] = getattr(module, str(node.target))
        inputs = node.all_input_nodes
        if node.op != "call_function" or not inputs or _has_effect(node) or not all(i in known for i in inputs):
            continue
        value = node.target(*map_arg(node.args, known.__getitem__), **map_arg(node.kwargs, known.__getitem__))
        if not isinstance(value, torch.Tensor):
            continue
        name = f"folded_{node.name}"
        module.register_buffer(name, value, persistent=False)
        with module.graph.inserting_before(node):
            folded = module.graph.get_attr(name)
        folded.meta = dict(node.meta)
        node.replace_all_uses_with(folded)
        module.graph.erase_node(node)
        known[folded] = value


def _bind_weights(module: GraphModule, program: ExportedProgram, weights: list[torch.Tensor]) -> None:
    """Weights are the first arguments; constants that tracing found come before them."""
    nodes = [node for node in module.graph.nodes if node.op == "placeholder"]
    given = iter(weights)
    left = len(weights)
    for node, spec in zip(nodes, program.graph_signature.input_specs, strict=True):
        if spec.kind is InputKind.USER_INPUT:
            if not left:
                continue
            value, left = next(given), left - 1
        else:
            value = program.constants[str(spec.target)]
        module.register_buffer(node.name, value, persistent=False)
        with module.graph.inserting_before(node):
            bound = module.graph.get_attr(node.name)
        bound.meta = dict(node.meta)
        node.replace_all_uses_with(bound)
        module.graph.erase_node(node)


def _simplify(module: GraphModule, node: Node) -> None:
    if node.target in _CHECKS:
        module.graph.erase_node(node)
    elif node.target in _IDLE:
        source = node.args[0]
        if isinstance(source, Node) and _same_layout(source, node):
            node.replace_all_uses_with(source)
            module.graph.erase_node(node)
    elif node.target is _ATEN.rsqrt.default:
        _fuse_norm(module, node)
    elif node.target is _ATEN.conv1d.default:
        _expand_short_convolution(module, node)


def _same_layout(one: Node, other: Node) -> bool:
    a, b = one.meta.get("val"), other.meta.get("val")
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
        return False
    return (a.dtype, a.device, str(a.shape), str(a.stride())) == (b.dtype, b.device, str(b.shape), str(b.stride()))


def _fuse_norm(module: GraphModule, rsqrt: Node) -> None:
    """x * rsqrt(mean(x ** 2, -1) + eps) in one operator."""
    added = _argument(rsqrt, _ATEN.add.Tensor)
    mean = added and _argument(added, _ATEN.mean.dim)
    power = mean and _argument(mean, _ATEN.pow.Tensor_Scalar)
    users = list(rsqrt.users)
    if not added or not mean or not power or len(users) != 1 or users[0].target is not _ATEN.mul.Tensor:
        return
    x, scaled = power.args[0], users[0]
    expected = isinstance(added.args[1], float) and mean.args[1] == [-1] and power.args[1] == 2 and x in scaled.args
    if not expected or not isinstance(x, Node):
        return
    width = x.meta["val"].shape[-1]
    if not isinstance(width, int) or x.meta["val"].dtype != scaled.meta["val"].dtype:
        return
    with module.graph.inserting_before(scaled):
        fused = module.graph.call_function(_ATEN.rms_norm.default, (x, [width], None, added.args[1]))
    fused.meta = dict(scaled.meta)
    scaled.replace_all_uses_with(fused)
    module.graph.erase_node(scaled)


def _expand_short_convolution(module: GraphModule, node: Node) -> None:
    """A depthwise convolution with a few outputs as products and sums, which a CPU does faster."""
    defaults: list[Any] = [None, [1], [0], [1], 1]
    arguments: list[Any] = [*node.args, *defaults[len(node.args) - 2 :]]
    x, weight, bias, stride, padding, dilation, groups = arguments
    channels, outputs = weight.meta["val"].shape[0], node.meta["val"].shape[-1]
    plain = (list(stride), list(padding), list(dilation)) == ([1], [0], [1]) and groups == channels
    if not plain or not isinstance(outputs, int) or outputs > _SHORT or node.meta["val"].device.type != "cpu":
        return
    graph, kernel = module.graph, weight.meta["val"].shape[-1]
    with graph.inserting_before(node):
        windows = graph.call_function(_ATEN.unfold.default, (x, 2, kernel, 1))
        products = graph.call_function(_ATEN.mul.Tensor, (windows, weight))
        result = graph.call_function(_ATEN.sum.dim_IntList, (products, [-1]))
        if bias is not None:
            column = graph.call_function(_ATEN.unsqueeze.default, (bias, -1))
            result = graph.call_function(_ATEN.add.Tensor, (result, column))
    result.meta = dict(node.meta)
    node.replace_all_uses_with(result)
    graph.erase_node(node)


def _argument(node: Node, target: Any) -> Node | None:
    first = node.args[0]
    return first if isinstance(first, Node) and first.target is target and len(first.users) == 1 else None


def _has_effect(node: Node) -> bool:
    if node.op != "call_function":
        return node.op == "output"
    if node.target is operator.getitem:
        return False
    schema = getattr(node.target, "_schema", None)
    return schema is not None and schema.is_mutable
