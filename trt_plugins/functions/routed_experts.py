"""``routed_experts`` in standard operators: a scan over blocks of tokens that chose the same expert.

Letters of shapes: n tokens, k top_k, s = n * k routes, e experts, h hidden, u up_size, i intermediate; the routes are
sorted by expert in c blocks of q places each. No place belongs to two experts, so each step reads one expert's weights
and unused experts cost at most the remaining blocks.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import onnx

from hybridge.trt_plugins.activations import activated, sigmoid_divisor
from hybridge.trt_plugins.functions.body import Body
from hybridge.trt_plugins.functions.signature import Signature
from hybridge.trt_plugins.specs.routed_experts import ExpertActivation

FLOAT, INT64 = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64


def routed_experts_function(signature: Signature) -> onnx.FunctionProto:
    """One token makes top_k blocks of one place; many tokens make two blocks an expert, half of them full."""
    return experts_function(signature, lambda body, rows, expert, weight: rows)


# Inputs [q, features] of the product by a weight of the expert, as the product reads them.
InputForm = Callable[[Body, str, str, str], str]


def experts_function(signature: Signature, form: InputForm) -> onnx.FunctionProto:
    """The function with inputs of products in the form ``form``."""
    body = Body(signature)
    last = 2 if signature.has_time else 1
    hidden, top_k = body.size("x", last), body.size("expert_ids", last)
    tokens = body.reshape(body.read("x"), body.constant([-1]), hidden)
    ids = body.op("Cast", body.op("Reshape", "expert_ids", body.constant([-1])), to=INT64)
    blocks = _Blocks.of(body, ids, top_k)
    rows = body.op("Gather", tokens, blocks.token)
    results = body.map_slices(
        lambda slices: _expert(body, form, *slices), (blocks.expert, rows), ((INT64, 0), (FLOAT, 2)), 2
    )
    routes = body.reshape(body.op("GatherND", results, blocks.place), body.constant([-1]), top_k, hidden)
    weights = body.op("Reshape", "expert_weights", body.concat(body.constant([-1]), top_k, body.constant([1])))
    y = body.op("ReduceSum", body.op("Mul", routes, weights), body.constant([1]), keepdims=0)
    body.write(body.op("Reshape", y, body.op("Shape", "x")), "y", like="x")
    return body.function()


def _expert(body: Body, form: InputForm, expert: str, rows: str) -> str:
    """Rows [q, h] of one expert to results [q, h]; the products are in the type of the weights."""
    data = body.signature.type_of("up_weight").onnx

    def product(x: str, name: str) -> str:
        weight, bias = f"{name}_weight", f"{name}_bias"
        own = body.op("Transpose", body.op("Gather", weight, expert), perm=[1, 0])
        inputs = body.op("Cast", form(body, x, expert, weight), to=data)
        result = body.op("Cast", body.op("MatMul", inputs, own), to=FLOAT)
        if not body.signature.has(bias):
            return result
        return body.op("Add", result, body.op("Cast", body.op("Gather", bias, expert), to=FLOAT))

    return product(_activation(body, product(rows, "up")), "down")


def _activation(body: Body, up: str) -> str:
    """Rows [q, u] to [q, i]."""
    form = ExpertActivation.of(dict(body.signature.attributes))
    if not form.gated:
        return _activated(body, up, form)
    gate, up = body.split(up, 2, axis=1)
    if form.limit < math.inf:
        bound, least = body.float32(form.limit), body.float32(-form.limit)
        gate, up = body.op("Min", gate, bound), body.op("Max", body.op("Min", up, bound), least)
    factor = body.op("Add", up, body.float32(form.offset)) if form.offset else up
    return body.op("Mul", _activated(body, gate, form), factor)


def _activated(body: Body, x: str, form: ExpertActivation) -> str:
    if form.name != "silu" or form.alpha == 1.0:
        return activated(body, x, form.name)
    return body.op("Div", x, sigmoid_divisor(body, body.op("Mul", x, body.float32(form.alpha))))


@dataclass(frozen=True)
class _Blocks:
    """The place of each route.

    expert: the expert of each block [c]. token: the token at each place [c, q], any where no route is. place: block
    and place in it of each route [s, 2].
    """

    expert: str
    token: str
    place: str

    @classmethod
    def of(cls, body: Body, ids: str, top_k: str) -> _Blocks:
        """``ids`` [s] int64, the chosen experts of one token after the other."""
        routes, experts = body.size(ids, 0), body.size("up_weight", 0)
        # Both grow with s, so that an engine bounds each by its value at the most tokens. Up to e routes make blocks
        # of one place; more routes make blocks of s / e places, of which each expert has at most one unfilled.
        length = body.ceil_div(routes, experts)
        count = body.op("Min", routes, body.op("Mul", experts, body.constant([2])))
        hits = body.op("Cast", body.op("Equal", body.unsqueeze(ids, 1), body.range(experts)), to=FLOAT)  # [s, e]
        # How many routes before each have its expert; float32 is exact up to 2^24 of them.
        earlier = body.op("Mul", body.op("CumSum", hits, body.constant(0), exclusive=1), hits)
        earlier = body.op("Cast", body.op("ReduceSum", earlier, body.constant([1]), keepdims=0), to=INT64)
        routes_of = body.op("Cast", body.op("ReduceSum", hits, body.constant([0]), keepdims=0), to=INT64)
        blocks_of = body.ceil_div(routes_of, length)
        end = body.op("CumSum", blocks_of, body.constant(0))
        passed = body.op("Cast", body.op("GreaterOrEqual", body.unsqueeze(body.range(count), 1), end), to=INT64)
        expert = body.op("ReduceSum", passed, body.constant([1]), keepdims=0)
        last = body.op("Sub", experts, body.constant([1]))
        full = body.op("Div", earlier, length)
        block = body.op("Add", body.op("Gather", body.op("Sub", end, blocks_of), ids), full)
        offset = body.op("Sub", earlier, body.op("Mul", full, length))
        place = body.concat(body.unsqueeze(block, 1), body.unsqueeze(offset, 1), axis=1)
        empty = body.op("Expand", body.constant(0), body.concat(count, length))
        token = body.op("ScatterND", empty, place, body.op("Div", body.range(routes), top_k))
        return cls(body.op("Min", expert, last), token, place)
