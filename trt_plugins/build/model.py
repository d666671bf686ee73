"""The model.onnx of an artifact, made ready for TensorRT's parser without reading a weight."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import onnx

from hybridge.artifact.bindings import BLOCK_SIZE, MAX_SEQ, Binding
from hybridge.artifact.config import RuntimeConfig
from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import ArtifactError, EngineError, SettingError
from hybridge.artifact.kv_dtypes import E4M3_BYTES, FP8_E4M3
from hybridge.artifact.onnx_file import check_stored_weights, read_onnx
from hybridge.artifact.path_kind import MODEL_FILE
from hybridge.artifact.state_dtypes import state_dtype_name
from hybridge.trt_plugins.build.attention import STANDARD_DOMAINS, native_attention, support_attention
from hybridge.trt_plugins.build.options import REPLAY, SNAPSHOT
from hybridge.trt_plugins.build.plugin_choice import PluginChoice
from hybridge.trt_plugins.build.profiles import PAGED_BLOCK_SIZE
from hybridge.trt_plugins.call_check import TensorType
from hybridge.trt_plugins.catalog import DOMAIN, spec_of
from hybridge.trt_plugins.plugins.data_types import network_dtype
from hybridge.trt_plugins.plugins.fields import ALIASED, CAPABILITIES
from hybridge.trt_plugins.rewrites.draft_slots import DraftSlots, ReplayGraphs, with_replay, with_snapshots
from hybridge.trt_plugins.rewrites.hidden_states import HiddenForm
from hybridge.trt_plugins.rewrites.layer_names import name_layers_apart
from hybridge.trt_plugins.rewrites.zero_points import without_zero_points
from hybridge.trt_plugins.spec import AttributeValue
from hybridge.trt_plugins.value_types import domain_version, node_attributes, operator_nodes, value_types

# The attribute by which the parser finds the version of a plugin; 1 without it.
_PLUGIN_VERSION = "plugin_version"


@dataclass(frozen=True)
class ParserModel:
    """The parser's input. ``fp32_values``: names of values that must be float32 in the engine.

    sha256: of the file model.onnx. plugins: the nodes that have lost their body, because plugins run them.
    stored: outputs after those of config.json: a step's inputs for a replay; ``advance`` is the graph that replays
    them.
    """

    serialized: bytes
    fp32_values: tuple[str, ...]
    sha256: str
    plugins: PluginChoice
    stored: tuple[Binding, ...] = ()
    advance: ParserModel | None = None


def no_plugins(model: onnx.ModelProto) -> PluginChoice:
    """The choice of native layers alone."""
    return PluginChoice({}, "plugins are off")


def parser_model(
    artifact: Path,
    config: RuntimeConfig,
    max_seq_len: int,
    choose: Callable[[onnx.ModelProto], PluginChoice] = no_plugins,
    drafts: DraftSlots | None = None,
    file_name: str = MODEL_FILE,
    hidden: HiddenForm = HiddenForm.NONE,
) -> ParserModel:
    """Load ``file_name`` of ``artifact`` with caches of ``max_seq_len`` positions, checked against ``config``.

    choose: which nodes become plugins; it may rewrite the model in place. drafts: slots for draft tokens; operators
    that are replayed have to become plugins. hidden: what the engine does with hidden states.
    ArtifactError: the graph or its weights are missing, damaged or contradict config.json.
    EngineError: an operator has no body that native layers could run, keys and values are e4m3 and no plugins run, or
    recurrent states are e4m3.
    SettingError: a replay without plugins. What ``choose`` raises.
    """
    _check_states(artifact, config)
    file = read_onnx(artifact, file_name)
    model, digest = file.model, hashlib.sha256(file.raw).hexdigest()
    check_stored_weights(artifact, model, file_name)
    check_interface(model, config)
    check_bodies(model)
    hidden.rewrite(model, config)
    model = without_zero_points(native_attention(model))
    fix_axes(model, {MAX_SEQ: max_seq_len, BLOCK_SIZE: PAGED_BLOCK_SIZE})
    graphs = with_replay(model, drafts.tokens) if drafts is not None and drafts.replays else None
    if graphs is not None:
        model = graphs.check
    elif drafts is not None:
        model = with_snapshots(model, drafts.tokens)
    choice = choose(model)
    if config.has_kv_scales and not choice.nodes:
        raise EngineError(
            f"{artifact}: expected the plugins, which take keys and values of {FP8_E4M3} as bytes, found native layers "
            f"({choice.reason}): export without `kv_dtype`, or run `engine='torch'`"
        )
    found = _ready(model, choice, digest)
    if graphs is None:
        return found
    return _with_advance(found, graphs, digest)


def _with_advance(found: ParserModel, graphs: ReplayGraphs, digest: str) -> ParserModel:
    """``found`` with the graph that computes accepted tokens again; SettingError where plugins are off."""
    if not found.plugins.nodes:
        raise SettingError(
            f"draft_states: expected for {REPLAY!r} the plugins, which update states in place, found native layers "
            f"({found.plugins.reason}): use `draft_states={SNAPSHOT!r}`"
        )
    types = value_types(graphs.check)
    stored = tuple(Binding(name, types[name].dtype, _dims(types[name])) for name in graphs.stored)
    nodes = {node.name: node.op_type for node in operator_nodes(graphs.advance)}
    advance = _ready(graphs.advance, replace(found.plugins, nodes=nodes), digest)
    return replace(found, stored=stored, advance=advance)


def _check_states(artifact: Path, config: RuntimeConfig) -> None:
    """EngineError where TensorRT engines cannot take the recurrent states."""
    if config.state_scales and config.recurrent_state_dtype is E4M3_BYTES:
        # "TensorRT does not support UINT8 types for intermediate tensors", its parser says.
        raise EngineError(
            f"{artifact}: expected recurrent states of int8, or of 16 or 32 bits, which TensorRT engines take, found "
            f"{state_dtype_name(config.recurrent_state_dtype)}: export with another `state_dtype`, or run "
            "`engine='torch'`"
        )


def _ready(model: onnx.ModelProto, choice: PluginChoice, digest: str) -> ParserModel:
    """``model`` for the parser; changed in place."""
    fp32_values = float32_values(model)
    use_plugins(model, choice)
    use_network_types(model)
    support_attention(model)
    name_layers_apart(model)
    return ParserModel(model.SerializeToString(), fp32_values, digest, choice)


def use_plugins(model: onnx.ModelProto, choice: PluginChoice) -> None:
    """Keep, in place, only bodies that other nodes need: the parser takes a body before it looks for a plugin.

    Each node gets all its attributes (the parser warns of absent ones) and its plugin's other settings.
    """
    needed = {node.op_type for node in operator_nodes(model) if node.name not in choice.nodes}
    remaining = [f for f in model.functions if f.domain != DOMAIN or f.name in needed]
    del model.functions[:]
    model.functions.extend(remaining)
    version = domain_version(model)
    for node in operator_nodes(model):
        if node.name in choice.nodes:
            spec = spec_of(node.op_type, version)
            attributes = spec.complete_attributes(node_attributes(node))
            del node.attribute[:]
            extras: dict[str, AttributeValue] = {CAPABILITIES: ",".join(choice.capabilities)}
            extras |= {ALIASED: int(choice.aliased), _PLUGIN_VERSION: str(spec.version)}
            for name, value in {**attributes, **extras}.items():
                node.attribute.append(onnx.helper.make_attribute(name, value))


def use_network_types(model: onnx.ModelProto) -> None:
    """Declare, in place, the type that a network has for pools of bytes, which only plugins read and write."""
    for value in (*model.graph.input, *model.graph.output, *model.graph.value_info):
        tensor = value.type.tensor_type
        if tensor.elem_type == E4M3_BYTES.onnx:
            tensor.elem_type = network_dtype(E4M3_BYTES).onnx


def fix_axes(model: onnx.ModelProto, sizes: Mapping[str, int]) -> None:
    """Replace symbolic axes by numbers, in place, in every declared shape of the main graph.

    An axis that is an expression of a fixed one (``max_seq - seq``) becomes unknown, because it cannot stay unchanged.
    """
    graph = model.graph
    for value in (*graph.input, *graph.output, *graph.value_info):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param in sizes:
                dim.dim_value = sizes[dim.dim_param]
            elif set(re.findall(r"\w+", dim.dim_param)) & set(sizes):
                dim.Clear()


def float32_values(model: onnx.ModelProto) -> tuple[str, ...]:
    """The values that operators declare as float32 whatever the compute type is, such as ``A``; each has that type.

    ArtifactError naming the first one that has another type.
    """
    types, version = value_types(model), domain_version(model)
    names: dict[str, None] = {}
    for node in operator_nodes(model):
        for spec, name in zip(spec_of(node.op_type, version).inputs, node.input, strict=False):
            if not name or spec.dtype is not DType.FLOAT32:
                continue
            if types[name].dtype is not DType.FLOAT32:
                raise ArtifactError(
                    f"{MODEL_FILE}: expected input {spec.name} of {node.name} in float32, found "
                    f"{types[name].dtype.value}: export the checkpoint again"
                )
            names[name] = None
    return tuple(names)


def check_interface(model: onnx.ModelProto, config: RuntimeConfig) -> None:
    """ArtifactError unless the graph's inputs and outputs are those of config.json, in order."""
    for kind, values, bindings in (
        ("input", model.graph.input, config.bindings.inputs),
        ("output", model.graph.output, config.bindings.outputs),
    ):
        declared = [(b.name, b.dtype.onnx, b.shape) for b in bindings]
        found = [(v.name, v.type.tensor_type.elem_type, _shape(v)) for v in values]
        if declared != found:
            differing = next((b for b, d, f in zip(bindings, declared, found, strict=False) if d != f), None)
            raise ArtifactError(
                f"{MODEL_FILE}: expected the {kind}s that config.json declares, "
                f"found another {_name(differing, kind)}: export the checkpoint again"
            )


def check_bodies(model: onnx.ModelProto) -> None:
    """EngineError unless every operator outside the standard domain comes with a function."""
    bodies = {(function.domain, function.name) for function in model.functions}
    for node in model.graph.node:
        if node.domain not in STANDARD_DOMAINS and (node.domain, node.op_type) not in bodies:
            raise EngineError(
                f"{MODEL_FILE}: expected a function for {node.domain}::{node.op_type} of node {node.name}, found none: "
                "export the checkpoint again"
            )


def _shape(value: onnx.ValueInfoProto) -> tuple[int | str, ...]:
    return tuple(d.dim_param or d.dim_value for d in value.type.tensor_type.shape.dim)


def _dims(tensor: TensorType) -> tuple[int | str, ...]:
    return tuple(dim if isinstance(dim, int) else str(dim) for dim in tensor.shape)


def _name(binding: Binding | None, kind: str) -> str:
    return f"number of {kind}s" if binding is None else f"{kind} {binding.name}"
