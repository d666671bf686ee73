"""Helpers of the rewrites for nodes of an fx graph whose ``meta["val"]`` is a fake tensor."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.fx import Graph, Node
from torch.fx.node import map_arg

aten = torch.ops.aten


def value_of(node: Any) -> torch.Tensor | None:
    """The fake tensor of a node; None where it is no tensor."""
    value = node.meta.get("val") if isinstance(node, Node) else None
    return value if isinstance(value, torch.Tensor) else None


def fixed_shape(node: Any) -> tuple[int, ...] | None:
    """The shape of a node's tensor; None where it is no tensor or an axis is free."""
    value = value_of(node)
    if value is None or not all(isinstance(size, int) for size in value.shape):
        return None
    return tuple(value.shape)


def call(graph: Graph, target: Any, *args: Any, **kwargs: Any) -> Node:
    """A new node at the point of insertion, with its fake value."""
    node = graph.call_function(target, args, kwargs)
    node.meta["val"] = target(*map_arg(args, _fake), **map_arg(kwargs, _fake))
    return node


def replace(node: Node, other: Node) -> None:
    """Let the users of ``node`` use ``other``, and erase it."""
    node.replace_all_uses_with(other)
    node.graph.erase_node(node)


def only_user(node: Node) -> Node | None:
    users = list(node.users)
    return users[0] if len(users) == 1 else None


def single_use_of(node: Any, target: Any) -> Node | None:
    """``node`` when it is a call of ``target`` that nothing else uses."""
    return node if isinstance(node, Node) and node.target is target and len(node.users) == 1 else None


def on_cpu(node: Node) -> bool:
    value = value_of(node)
    return value is not None and value.device.type == "cpu"


def has_effect(node: Node) -> bool:
    """Whether the node does more than return a value."""
    if node.op != "call_function":
        return node.op == "output"
    if node.target is operator.getitem:
        return False
    schema = getattr(node.target, "_schema", None)
    return schema is not None and schema.is_mutable


def _fake(node: Node) -> Any:
    return node.meta["val"]
