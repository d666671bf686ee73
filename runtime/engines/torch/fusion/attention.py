"""Cache update and attention as one CachedAttention node, which works on the caches where they are.

The exporter writes the new keys and values into a copy of the cache by TensorScatter and lets Attention read all of it
through a mask. CachedAttention reads q, k, v [batch, heads, seq, size], past_key, past_value and a StepCache node's
result, which all layers of one window share; it gives y and the two caches. Attribute: scale.
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from hybridge.artifact.config import RuntimeConfig
from hybridge.artifact.layer_config import KVLayerConfig
from hybridge.artifact.names import CONTEXT_LENGTHS, PAST_LENGTHS, past_key, past_value
from hybridge.runtime.engines.torch.fusion.meaning import is_cache_update, is_visible_keys
from hybridge.runtime.engines.torch.graph import DOMAIN, fuse, lengths_input, producer

CACHED_ATTENTION, STEP_CACHE = "CachedAttention", "StepCache"


@dataclass(frozen=True)
class _Update:
    """One cache of one layer: the graph input, the new tokens, and the output that replaces it."""

    cache: ir.Value
    new: ir.Value
    present: ir.Value


def fuse_attention(graph: ir.Graph, config: RuntimeConfig) -> None:
    """Fuse every attention layer that is what the exporter writes; others stay as they are."""
    shared: dict[int | None, ir.Value] = {}
    masks: dict[tuple[ir.Value | None, int | None], bool] = {}
    for k, layer in enumerate(config.kv_layers):
        found = _find(graph, k)
        if found is None:
            continue
        node, key, value = found
        mask = (node.inputs[3], layer.sliding_window)
        if mask not in masks:
            masks[mask] = is_visible_keys(graph, *mask)
        updates = (is_cache_update(graph, item.present, item.cache, item.new) for item in (key, value))
        if masks[mask] and all(updates):
            _fuse(graph, node, key, value, _step_cache(graph, layer, shared))


def _find(graph: ir.Graph, k: int) -> tuple[ir.Node, _Update, _Update] | None:
    inputs = {value.name: value for value in graph.inputs}
    key, value = (_update(inputs.get(name)) for name in (past_key(k), past_value(k)))
    if key is None or value is None:
        return None
    readers = [use.node for use in key.present.uses()]
    if len(readers) != 1 or readers[0].op_type != "Attention" or len(list(value.present.uses())) != 1:
        return None
    (node,) = readers
    others = {name: attribute.value for name, attribute in node.attributes.items() if name != "scale"}
    if list(node.inputs[1:3]) != [key.present, value.present] or any(others.values()) or "scale" not in node.attributes:
        return None
    return (node, key, value) if len(node.inputs) == 4 and len(node.outputs) == 1 else None


def _update(cache: ir.Value | None) -> _Update | None:
    """The update of ``cache``, where only its TensorScatter and the read of what stays look into it."""
    if cache is None:
        return None
    readers = [use.node for use in cache.uses() if use.node.op_type != "Shape"]
    scatter = next((node for node in readers if node.op_type == "TensorScatter"), None)
    where = None if scatter is None else producer(scatter.inputs[1], "Where")
    if scatter is None or where is None or len(readers) != 2 or scatter.inputs[0] is not cache:
        return None
    moved, kept = (producer(value, "GatherElements") for value in where.inputs[1:])
    if moved is None or kept is None or kept.inputs[0] is not cache or moved.inputs[0] is None:
        return None
    return _Update(cache, moved.inputs[0], scatter.outputs[0])


def _step_cache(graph: ir.Graph, layer: KVLayerConfig, shared: dict[int | None, ir.Value]) -> ir.Value:
    window = layer.sliding_window
    if window not in shared:
        inputs = {value.name: value for value in graph.inputs}
        lengths = [inputs[CONTEXT_LENGTHS], inputs[PAST_LENGTHS], lengths_input(graph)]
        node = ir.node(STEP_CACHE, lengths, {"window": window or 0}, domain=DOMAIN)
        node.outputs[0].name = f"engine.step_cache_{window or 0}"
        graph.insert_before(graph[0], node)
        shared[window] = node.outputs[0]
    return shared[window]


def _fuse(graph: ir.Graph, node: ir.Node, key: _Update, value: _Update, step: ir.Value) -> None:
    inputs = [node.inputs[0], key.new, value.new, key.cache, value.cache, step]
    results = [node.outputs[0], key.present, value.present]
    fuse(results, CACHED_ATTENTION, inputs, {"scale": node.attributes["scale"].as_float()})
