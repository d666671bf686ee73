"""torch.export and torch.onnx without the steps that a decoder's program does not need.

torch.export writes down the Python stack of every operator and the memory format of every tensor, which are no part of
the model, and remembers each call for another with the same arguments, which hardly ever comes. This takes a third of
its time.

torch.onnx prepares for any program: it loads a translation of every ATen operator, decomposes the program by tracing
it a second time, and runs it again to find the types that an operator would promote. A decoder is made of operators
of the translation table alone, in types that agree; for such a program all three change nothing and take most of
the time. They are left out where a look at the program shows that, and where torch has them under the names of
torch 2.13; else torch.onnx goes its own way.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node

_INNER = "torch.onnx._internal.exporter"
Table = Mapping[Any, Callable[..., Any]]
# Removed by torch.onnx before it translates.
_ASSERTIONS = frozenset({torch.ops.aten._assert_tensor_metadata.default})
# Operators whose result has the promoted type of its tensors and numbers.
_PROMOTING = frozenset(
    {
        torch.ops.aten.add.Tensor,
        torch.ops.aten.div.Tensor,
        torch.ops.aten.mul.Tensor,
        torch.ops.aten.where.self,
        torch.ops.aten.cat.default,
    }
)


@contextlib.contextmanager
def lean_tracing() -> Iterator[None]:
    """Inside, torch.export records no stacks and formats, and remembers no calls, where torch has these names."""
    with contextlib.ExitStack() as changed:
        for module, name, value in (
            ("torch.fx.config", "do_not_emit_stack_traces", True),
            ("torch._dynamo.config", "fake_tensor_cache_enabled", False),
            ("torch.fx.experimental.proxy_tensor", "_extract_tensor_metadata", lambda _value: None),
            # Its result tells the frames of users from those of torch; it imports what torch's compiler replaces.
            ("torch.fx.experimental.symbolic_shapes", "uninteresting_files", frozenset),
        ):
            _replace(changed, module, (name,), value)
        yield


def undecomposed(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """``program``, whose decomposition is itself: torch.onnx fails at an operator without translation, naming it."""
    program.run_decompositions = lambda *_args, **_kwargs: program  # type: ignore[method-assign]
    return program


@contextlib.contextmanager
def lean_passes(program: torch.export.ExportedProgram, table: Table) -> Iterator[None]:
    """Inside, torch.onnx.export leaves out what changes nothing for ``program`` with the translations of ``table``."""
    nodes = program.graph_module.graph.nodes
    with contextlib.ExitStack() as replaced:
        # The table that ``undecomposed`` does not read.
        _replace(replaced, f"{_INNER}._decomp", ("create_onnx_friendly_decomposition_table",), lambda _operators: {})
        if all(_types_agree(node) for node in nodes):
            _replace(replaced, f"{_INNER}._fx_passes", ("insert_type_promotion_nodes",), _nothing)
            # Promotion may insert operators of the library.
            if all(_is_translated(node, table) for node in nodes):
                _replace(replaced, f"{_INNER}._registration", ("onnxscript_apis", "get_torchlib_ops"), list)
        yield


def _is_translated(node: Node, table: Table) -> bool:
    """Builtins (getitem, arithmetic of sizes) are translated by torch itself, not by its library of operators."""
    is_operator = node.op == "call_function" and isinstance(node.target, torch._ops.OpOverload)
    return not is_operator or node.target in table or node.target in _ASSERTIONS


def _types_agree(node: Node) -> bool:
    """True when no operand of ``node`` would be converted before the operator computes."""
    if node.target not in _PROMOTING:
        return True
    operands = node.args[0] if node.target is torch.ops.aten.cat.default else node.args
    assert isinstance(operands, (tuple, list))
    values = [operand.meta["val"] if isinstance(operand, Node) else operand for operand in operands]
    if node.target is torch.ops.aten.where.self:
        values = values[1:]
    types = {value.dtype for value in values if isinstance(value, torch.Tensor)}
    numbers = [value for value in values if not isinstance(value, torch.Tensor)]
    floating = all(dtype.is_floating_point for dtype in types)
    return len(types) == 1 and types == {node.meta["val"].dtype} and (floating or not numbers)


def _nothing(_module: GraphModule) -> None:
    pass


def _replace(stack: contextlib.ExitStack, module: str, path: Sequence[str], replacement: Any) -> None:
    """Give a name of ``module``, which is torch's own, another value until ``stack`` ends, where it exists."""
    try:
        owner: Any = importlib.import_module(module)
    except ImportError:
        return
    *parts, name = path
    for part in parts:
        owner = getattr(owner, part, None)
    original = getattr(owner, name, None)
    if original is not None:
        setattr(owner, name, replacement)
        stack.callback(setattr, owner, name, original)
