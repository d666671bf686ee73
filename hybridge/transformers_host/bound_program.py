"""A traced program made fast to call: weights bound, constants computed, operators rewritten to cheaper ones."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from hybridge.transformers_host.fx_rewrites.attention import share_keys
from hybridge.transformers_host.fx_rewrites.convolutions import expand_convolutions
from hybridge.transformers_host.fx_rewrites.expansions import expand_late
from hybridge.transformers_host.fx_rewrites.idle import remove_idle
from hybridge.transformers_host.fx_rewrites.nodes import aten, has_effect
from hybridge.transformers_host.fx_rewrites.norms import shorten_norms
from hybridge.transformers_host.fx_rewrites.states import update_states_in_place

_REWRITES = (shorten_norms, expand_convolutions, share_keys, expand_late, update_states_in_place)

Program = Callable[..., tuple[torch.Tensor]]


def bind_program(program: ExportedProgram, weights: Mapping[str, torch.Tensor]) -> Program:
    """A function of the bucket's inputs and the cache's tensors, in their order; it returns the hidden states.

    ``weights`` are used where they are, and what depends on them alone is computed now; the tensors of the cache are
    updated in place.
    """
    module = GraphModule(torch.nn.Module(), program.graph)
    _bind_weights(module, program, list(weights.values()))
    remove_idle(module.graph)
    _fold_constants(module, expansions=False)
    for rewrite in _REWRITES:
        rewrite(module.graph)
    _fold_constants(module, expansions=True)
    module.graph.eliminate_dead_code(lambda node: node.op == "placeholder" or has_effect(node))
    module.recompile()
    return module


def without_python(program: Program, arguments: Sequence[torch.Tensor]) -> Program:
    """``program`` for arguments of exactly these shapes, run by TorchScript: no Python between its operators.

    Tracing runs it on copies of ``arguments``.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.trace(program, tuple(argument.clone() for argument in arguments), check_trace=False)


def _fold_constants(module: GraphModule, expansions: bool) -> None:
    """Compute once what depends on weights alone; ``expansions``: also what only repeats it."""
    known: dict[Node, torch.Tensor] = {}
    for node in list(module.graph.nodes):
        if node.op == "get_attr":
            known[node] = getattr(module, str(node.target))
        if not _is_constant(node, known) or (node.target is aten.expand.default and not expansions):
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


def _is_constant(node: Node, known: Mapping[Node, torch.Tensor]) -> bool:
    if node.op != "call_function" or has_effect(node):
        return False
    scalar = node.target is aten.full.default and node.args[0] == []
    inputs = node.all_input_nodes
    return scalar or (bool(inputs) and all(source in known for source in inputs))


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
