"""``attention_step`` in standard operators."""

from __future__ import annotations

import numpy as np
import onnx

from hybridge.artifact.dtypes import DType
from hybridge.trt_plugins.functions.nodes import Nodes
from hybridge.trt_plugins.functions.signature import Signature

_ALL = int(np.iinfo(np.int32).max)


def attention_step_function(signature: Signature) -> onnx.FunctionProto:
    """A window of 0 counts as one that no position leaves."""
    body = Nodes(signature)
    zero, one = body.constant(0), body.constant([1])
    past, new = (body.op("Cast", name, to=DType.INT64.onnx) for name in ("past_lengths", "context_lengths"))
    seq, max_seq = body.size("input_ids", 1), body.size("cache", 2)
    token, past_column = body.range(seq), body.unsqueeze(past, 1)
    start = body.op("Max", body.op("Min", past, body.op("Sub", max_seq, seq)), zero)
    slots = body.op("Add", body.unsqueeze(start, 1), token)
    offset = body.op("Sub", slots, past_column)
    fits = body.op("Less", offset, body.unsqueeze(new, 1))
    valid = body.op("And", body.op("GreaterOrEqual", offset, zero), fits)
    source = body.op("Max", body.op("Min", offset, body.op("Sub", seq, one)), zero)
    body.output(start, "start")
    body.output(body.unsqueeze(valid, 1, 3), "valid")
    sizes = body.concat(one, body.size("cache", 1), one, body.size("cache", 3))
    for value, name in ((slots, "slots"), (source, "source")):
        body.output(body.op("Expand", body.unsqueeze(value, 1, 3), sizes), name)
    query, key = body.unsqueeze(body.op("Add", past_column, token), 1, 3), body.range(max_seq)
    window = body.attribute("sliding_window")
    window = body.op("Where", body.op("Equal", window, zero), body.constant(_ALL), window)
    inside = body.op("Greater", key, body.op("Sub", query, window))
    body.output(body.op("And", body.op("LessOrEqual", key, query), inside), "visible")
    return body.function()
