"""Whether an engine gets the project's plugins, and why not."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass

import onnx

from hybridge.artifact.bindings import BATCH, NUM_BLOCKS
from hybridge.artifact.engine_record import ProfileRecord
from hybridge.artifact.errors import ExportError, SettingError, UnsupportedError
from hybridge.artifact.names import BLOCK_TABLE, INPUT_IDS, conv_state, kv_pool, recurrent_state
from hybridge.artifact.paged import MAX_BLOCKS, ROW_BOUNDS, ROWS, TOKENS
from hybridge.trt_plugins.build.options import ALIASED, JOINED, BuildOptions
from hybridge.trt_plugins.build.target import TENSORRT, Target
from hybridge.trt_plugins.catalog import DENSE_VERSION, spec_of
from hybridge.trt_plugins.checks import CheckedNode, check_op_nodes
from hybridge.trt_plugins.kernels.catalog import operators, plan
from hybridge.trt_plugins.plugins.calls import CallRange, Planner, largest_workspace
from hybridge.trt_plugins.plugins.layer import state_inputs
from hybridge.trt_plugins.rewrites.joined_mixers import with_joined_mixers
from hybridge.trt_plugins.spec import OpSpec
from hybridge.trt_plugins.specs.packed import NUM_SLOTS
from hybridge.trt_plugins.specs.state_ring import is_ring
from hybridge.trt_plugins.value_types import domain_version

TIME = "time"
_KERNEL_PACKAGE = "cuda.bindings"


@dataclass(frozen=True)
class PluginChoice:
    """``nodes``: name to operator of the nodes that become plugins; empty where none does, for ``reason``.

    capabilities: what they are built for. aliased: they update states in place where TensorRT can. version: of the
    operators' domain.
    """

    nodes: dict[str, str]
    reason: str = ""
    capabilities: tuple[str, ...] = ()
    aliased: bool = True
    version: int = DENSE_VERSION

    @property
    def specs(self) -> dict[str, OpSpec]:
        """``nodes`` with the declarations of their operators."""
        return {name: spec_of(op, self.version) for name, op in self.nodes.items()}


def choose_plugins(
    model: onnx.ModelProto,
    options: BuildOptions,
    target: Target,
    profiles: list[ProfileRecord],
    planner: Planner = plan,
) -> PluginChoice:
    """Plugins for every node of ``model`` whose operator has kernels, or for none.

    Mixers are joined in place where the options say so.

    ``options.plugins``: "off"; "on": SettingError naming node and reason where one of them cannot be a plugin;
    "auto": none then.
    """
    if options.plugins == "off":
        return PluginChoice({}, "plugins are off")
    nodes, gap = _nodes_and_gap(model, target, profiles, planner)
    gap = gap or _states_gap(nodes, options)
    if not nodes and gap is None:
        return PluginChoice({}, "the graph has none of their operators")
    if gap is None:
        if options.plugin_mixers == JOINED:
            nodes = _join_mixers(model, target, profiles, planner) or nodes
        names, aliased = {node.name: node.op for node in nodes}, options.plugin_states == ALIASED
        return PluginChoice(names, "", target.compute_capabilities, aliased, domain_version(model))
    if options.plugins == "on":
        raise SettingError(f"plugins: {gap}; use `plugins='auto'`, or 'off'")
    return PluginChoice({}, gap)


def _join_mixers(
    model: onnx.ModelProto, target: Target, profiles: list[ProfileRecord], planner: Planner
) -> tuple[CheckedNode, ...]:
    """Join the mixers of ``model`` in place where plugins run the result, which has no other body; its nodes then."""
    joined = with_joined_mixers(model)
    if joined is None:
        return ()
    nodes, gap = _nodes_and_gap(joined, target, profiles, planner)
    if gap is not None:
        return ()
    model.CopyFrom(joined)
    return nodes


def _nodes_and_gap(
    model: onnx.ModelProto, target: Target, profiles: list[ProfileRecord], planner: Planner
) -> tuple[tuple[CheckedNode, ...], str | None]:
    """The nodes whose operator has kernels, and the first reason why one of them cannot be a plugin."""
    try:
        nodes = tuple(node for node in check_op_nodes(model) if node.spec.has_kernels)
        return nodes, next(plugin_gaps(nodes, target, profiles, planner), None)
    except ExportError as error:
        return (), str(error)


def plugin_gaps(
    nodes: tuple[CheckedNode, ...], target: Target, profiles: list[ProfileRecord], planner: Planner = plan
) -> Iterator[str]:
    """Why ``nodes`` cannot be plugins on ``target``: one sentence for each node, the first reason of each."""
    if target.library == TENSORRT and not _has_kernel_package():
        yield f"the plugins need the Python module {_KERNEL_PACKAGE}, found none: install the extra 'cuda'"
    names = [node.name for node in nodes]
    if len(set(names)) != len(names):
        yield "expected a unique name for every operator node, found one twice"
    for node in nodes:
        reason = _gap(node, target, profiles, planner)
        if reason is not None:
            yield f"node {node.name}: {reason}"


def _states_gap(nodes: tuple[CheckedNode, ...], options: BuildOptions) -> str | None:
    # Kernels over pools and rings write parts of them and leave the rest where it is.
    in_part = (n for n in nodes if state_inputs(n.spec) and (n.spec.version != DENSE_VERSION or is_ring(n.spec)))
    apart = [node for node in in_part if options.plugin_states != ALIASED]
    if not apart:
        return None
    return (
        f"node {apart[0].name}: expected `plugin_states={ALIASED!r}`, found {options.plugin_states}: "
        f"{apart[0].op} writes into its states and copies none"
    )


def _gap(node: CheckedNode, target: Target, profiles: list[ProfileRecord], planner: Planner) -> str | None:
    if node.op not in operators():
        return f"expected one of the operators with CUDA kernels ({', '.join(operators())}), found {node.op}"
    gaps = node.kernel_gaps()
    if gaps:
        return "; ".join(gaps)
    try:
        for profile in profiles:
            largest_workspace(node_calls(node, profile), target.compute_capabilities, planner)
    except UnsupportedError as error:
        return str(error)
    return None


def node_calls(node: CheckedNode, profile: ProfileRecord) -> CallRange:
    """The calls of ``node`` in one profile; UnsupportedError where a size other than rows and tokens is unknown."""
    known = _profile_dims(profile)
    dims = []
    for name, size in node.call.dims.items():
        if name not in known and size is None:
            raise UnsupportedError(f"expected a constant {name}, found a symbolic size; export the checkpoint again")
        dims.append((name, known.get(name, (size or 1, size or 1))))
    attributes, types = tuple(node.call.attributes.items()), tuple(node.call.types.items())
    return CallRange(node.spec, attributes, types, tuple(dims), node.call.has_time)


def _profile_dims(profile: ProfileRecord) -> dict[str, tuple[int, int]]:
    """Least and most of each symbolic dim, in the dense or the paged layout."""

    def bounds(name: str, axis: int) -> tuple[int, int]:
        least, _, most = profile.shapes[name]
        return least[axis], most[axis]

    if BLOCK_TABLE not in profile.shapes:
        return {BATCH: bounds(INPUT_IDS, 0), TIME: bounds(INPUT_IDS, 1)}
    least, most = bounds(BLOCK_TABLE, 0)
    found = {TOKENS: bounds(INPUT_IDS, 0), ROWS: (least, most), ROW_BOUNDS: (least + 1, most + 1)}
    found[MAX_BLOCKS] = bounds(BLOCK_TABLE, 1)
    if kv_pool(0) in profile.shapes:
        found[NUM_BLOCKS] = bounds(kv_pool(0), 1)
    for state in (conv_state(0), recurrent_state(0)):
        if state in profile.shapes:
            found[NUM_SLOTS] = bounds(state, 0)
    return found


def _has_kernel_package() -> bool:
    try:
        return importlib.util.find_spec(_KERNEL_PACKAGE) is not None
    except ModuleNotFoundError:
        return False
