"""The choice of experts as one TopKSoftmax node, which has the logits [..., experts] and gives weights and ids.

    Softmax -> TopK [-> / ReduceSum], or TopK -> Softmax; the ids -> Cast to int32

Attributes: top_k; normalized, whether the weights of a token add up to 1 (both of the divided and of the second form).
"""

from __future__ import annotations

import onnx_ir as ir

from hybridge.runtime.engines.torch.graph import constant_ints, fuse, is_inner, only_use, producer

TOP_K_SOFTMAX = "TopKSoftmax"


def fuse_routers(graph: ir.Graph) -> None:
    """Make one node of every choice by a softmax."""
    for node in list(graph):
        if (node.domain, node.op_type) == ("", "TopK") and node.graph is not None:
            _fuse(node)


def _fuse(node: ir.Node) -> None:
    count, ids = constant_ints(node.inputs[1]), only_use(node.outputs[1], "Cast")
    over_last = node.attributes.get_int("axis", -1) == -1 and node.attributes.get_int("largest", 1) == 1
    if count is None or ids is None or ids.attributes.get_int("to") != int(ir.DataType.INT32) or not over_last:
        return
    before, values = producer(node.inputs[0], "Softmax"), node.outputs[0]
    after = only_use(values, "Softmax")
    if before is not None and is_inner(before.outputs[0]) and _is_over_last(before):
        divided = _divided_by_sum(values)
        logits, weights, normalized = before.inputs[0], divided or values, divided is not None
    elif after is not None and _is_over_last(after):
        logits, weights, normalized = node.inputs[0], after.outputs[0], True
    else:
        return
    if logits is not None and logits.dtype == ir.DataType.FLOAT:
        attributes = {"top_k": count[0], "normalized": int(normalized)}
        fuse([weights, ids.outputs[0]], TOP_K_SOFTMAX, [logits], attributes)


def _is_over_last(softmax: ir.Node) -> bool:
    return softmax.attributes.get_int("axis", -1) == -1


def _divided_by_sum(values: ir.Value) -> ir.Value | None:
    """values / sum(values), where nothing else reads the values."""
    users = {use.node.op_type: use.node for use in values.uses()}
    if set(users) != {"ReduceSum", "Div"} or values.is_graph_output():
        return None
    total, quotient = users["ReduceSum"], users["Div"]
    over_last = constant_ints(total.inputs[1]) == (-1,) and total.attributes.get_int("keepdims", 1) == 1
    same = list(quotient.inputs) == [values, total.outputs[0]] and is_inner(total.outputs[0])
    return quotient.outputs[0] if over_last and same else None
