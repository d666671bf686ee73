"""Bodies of ``trt_edgellm`` operators for this engine, instead of the artifact's portable functions.

In a padded graph they keep padding out of the states, but y is unspecified where the declaration has zeros. An
operator, or a form of one, without a body here keeps the artifact's own function, which is slower.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import onnx_ir as ir

from hybridge.runtime.engines.onnxruntime.causal_conv1d import causal_conv1d_body
from hybridge.runtime.engines.onnxruntime.gated_delta_rule import gated_delta_rule_body
from hybridge.runtime.engines.onnxruntime.graph_edit import Inserter, replace_node
from hybridge.runtime.engines.onnxruntime.kernels import Kernels
from hybridge.runtime.engines.onnxruntime.routed_experts import routed_experts_body
from hybridge.runtime.engines.onnxruntime.selective_scan import selective_scan_body
from hybridge.runtime.engines.onnxruntime.state_8bit import body_8bit
from hybridge.runtime.engines.onnxruntime.state_ring import body_ring
from hybridge.runtime.engines.onnxruntime.update_ssm_state import update_ssm_state_body
from hybridge.trt_plugins.catalog import DOMAIN

# (node, inserter, kernels, padded) -> the node's outputs, or None to keep the artifact's function.
OpBody = Callable[[ir.Node, Inserter, Kernels, bool], "list[ir.Value] | None"]
BODIES: Mapping[str, OpBody] = MappingProxyType(
    {
        "causal_conv1d": causal_conv1d_body,
        "gated_delta_rule": gated_delta_rule_body,
        "gated_delta_rule_8bit": body_8bit(gated_delta_rule_body),
        "gated_delta_rule_ring": body_ring(gated_delta_rule_body),
        "routed_experts": routed_experts_body,
        "selective_scan": selective_scan_body,
        "update_ssm_state": update_ssm_state_body,
        "update_ssm_state_8bit": body_8bit(update_ssm_state_body),
        "update_ssm_state_ring": body_ring(update_ssm_state_body),
    }
)


def use_op_bodies(model: ir.Model, kernels: Kernels, padded: bool) -> None:
    """Replace every node that has a body for the installed ONNX Runtime.

    ``padded`` says that rows may be of unequal length; without it context_lengths is ignored.
    """
    for node in list(model.graph):
        body = BODIES.get(node.op_type) if node.domain == DOMAIN else None
        if body is None:
            continue
        outputs = body(node, Inserter(model.graph, node), kernels, padded)
        if outputs is not None:
            replace_node(node, outputs)
