"""cached_attention and cached_latent_attention as one node each, which works on the caches where they are.

CachedAttention reads q, k, v [batch, heads, seq, size], past_key, past_value and the result of a StepCache node, which
takes the place of attention_step, and sinks where the layer has them; it gives y and the two caches. Attribute: scale.
CachedLatentAttention reads no v and past_value, and gives y and one cache.
"""

from __future__ import annotations

import onnx_ir as ir

from hybridge.artifact.errors import EngineError
from hybridge.artifact.names import CONTEXT_LENGTHS, PAST_LENGTHS
from hybridge.runtime.engines.torch.graph import DOMAIN, fuse, lengths_input, producer
from hybridge.trt_plugins.catalog import DOMAIN as OPERATORS
from hybridge.trt_plugins.specs.attention_step import ATTENTION_STEP
from hybridge.trt_plugins.specs.cached_attention import ATTENTIONS, CACHED_ATTENTION, CACHED_LATENT_ATTENTION

STEP_CACHE = "StepCache"
_NODES = {CACHED_ATTENTION.name: "CachedAttention", CACHED_LATENT_ATTENTION.name: "CachedLatentAttention"}


def fuse_attention(graph: ir.Graph) -> None:
    """Fuse every attention layer; those of one attention_step share a StepCache."""
    steps: dict[ir.Node, ir.Value] = {}
    for node in list(graph):
        spec = ATTENTIONS.get(node.op_type) if node.domain == OPERATORS else None
        if spec is not None:
            step = producer(node.inputs[spec.input_index("visible")], ATTENTION_STEP.name, OPERATORS)
            if step is None:
                raise EngineError(
                    f"expected {ATTENTION_STEP.name} before {node.op_type} {node.name}, found another node: export the "
                    "checkpoint again"
                )
            if step not in steps:
                steps[step] = _step_cache(graph, step)
            attributes = {"scale": node.attributes["scale"].as_float()}
            tensors, sinks = node.inputs[: spec.input_index("start")], node.inputs[spec.input_index("visible") + 1 :]
            fuse(list(node.outputs), _NODES[spec.name], [*tensors, steps[step], *sinks], attributes)


def _step_cache(graph: ir.Graph, step: ir.Node) -> ir.Value:
    inputs = {value.name: value for value in graph.inputs}
    lengths = [inputs[CONTEXT_LENGTHS], inputs[PAST_LENGTHS], lengths_input(graph)]
    node = ir.node(STEP_CACHE, lengths, {"window": step.attributes["sliding_window"].as_int()}, domain=DOMAIN)
    node.outputs[0].name = f"{step.outputs[0].name}.step_cache"
    graph.insert_before(step, node)
    return node.outputs[0]
