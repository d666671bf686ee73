"""x * rsqrt(mean(x ** 2, -1) + eps), which a CPU computes in six passes, in three."""

from __future__ import annotations

import math

import torch
from torch.fx import Graph, Node

from hybridge.transformers_host.fx_rewrites.nodes import (
    aten,
    call,
    on_cpu,
    only_user,
    replace,
    single_use_of,
    value_of,
)


def shorten_norms(graph: Graph) -> None:
    """With n = width: x / hypot(|x|, sqrt(n eps)) * sqrt(n); a weight that follows takes the factor over."""
    for node in list(graph.nodes):
        if node.target is aten.rsqrt.default:
            _shorten(graph, node)


def _shorten(graph: Graph, rsqrt: Node) -> None:
    added = single_use_of(rsqrt.args[0], aten.add.Tensor)
    mean = added and single_use_of(added.args[0], aten.mean.dim)
    power = mean and single_use_of(mean.args[0], aten.pow.Tensor_Scalar)
    scaled = only_user(rsqrt)
    if not added or not mean or not power or scaled is None or scaled.target is not aten.mul.Tensor:
        return
    x, eps = power.args[0], added.args[1]
    if not isinstance(x, Node) or not isinstance(eps, float) or x not in scaled.args:
        return
    value, result = value_of(x), value_of(scaled)
    assert value is not None and result is not None
    width = value.shape[-1]
    plain = mean.args[1] == [-1] and power.args[1] == 2 and isinstance(width, int)
    if not plain or not on_cpu(x) or (value.dtype, result.dtype) != (torch.float32, torch.float32):
        return
    with graph.inserting_before(scaled):
        length = call(graph, aten.linalg_vector_norm.default, x, 2, [-1], True)
        least = call(graph, aten.full.default, [], math.sqrt(width * eps), dtype=torch.float32)
        divided = call(graph, aten.div.Tensor, x, call(graph, aten.hypot.default, length, least))
    factor = math.sqrt(width)
    if not _weight_takes(graph, scaled, factor):
        with graph.inserting_before(scaled):
            divided = call(graph, aten.mul.Tensor, divided, factor)
    replace(scaled, divided)


def _weight_takes(graph: Graph, scaled: Node, factor: float) -> bool:
    """Multiply the weight behind ``scaled``, which is a constant, by ``factor``; False when there is none."""
    inner = scaled
    user = only_user(inner)
    while user is not None and user.target is aten.view.default:
        inner, user = user, only_user(user)
    if user is None or user.target is not aten.mul.Tensor:
        return False
    weight = user.args[1] if user.args[0] is inner else user.args[0]
    if not isinstance(weight, Node) or weight.op != "get_attr":
        return False
    with graph.inserting_before(user):
        larger = call(graph, aten.mul.Tensor, weight, factor)
    user.args = tuple(larger if argument is weight else argument for argument in user.args)
    return True
