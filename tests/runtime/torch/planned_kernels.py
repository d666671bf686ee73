"""Kernel calls without a GPU: planned as for one, and computed by torch instead of launched."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from hybridge.runtime.engines.torch.kernels import KernelRunner
from hybridge.runtime.engines.torch.weights import WeightStore
from hybridge.trt_plugins import torch_ops
from hybridge.trt_plugins.catalog import OPS, PACKED_OPS, spec_of
from hybridge.trt_plugins.kernels.call import CallPlan, DeviceTraits
from hybridge.trt_plugins.kernels.fused import tiled_experts
from hybridge.trt_plugins.kernels.fused.activate import Activate
from hybridge.trt_plugins.kernels.fused.gather_rows import GatherRows
from hybridge.trt_plugins.kernels.fused.linear_decode import LinearDecode
from hybridge.trt_plugins.kernels.fused.rms_norm import RmsNorm
from hybridge.trt_plugins.kernels.fused.routed_experts import ExpertsDecode
from hybridge.trt_plugins.kernels.fused.tiled_experts import Half, TiledExperts
from hybridge.trt_plugins.kernels.fused.top_k_softmax import TopKSoftmax
from hybridge.trt_plugins.kernels.fused.weight_tiles import UnpackTiles
from hybridge.trt_plugins.reference.routed_experts import expert_activation, routed_experts
from hybridge.trt_plugins.specs.routed_experts import ExpertActivation
from tests.support.kernel_calls import H200
from tests.support.weights import matrix_from_tiles

Tensors = Sequence[torch.Tensor | None]
Plan = Callable[[DeviceTraits], CallPlan]
PACKED_ONLY = frozenset(PACKED_OPS) - frozenset(OPS)


class AlignedWeights(WeightStore):
    """Weights at addresses like those of a GPU's allocations, which kernels rely on; a file's lie anywhere."""

    def on_device(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.clone()


class PlannedKernels(KernelRunner):
    """Refuses what the planners refuse. ``launched`` counts kernels by entry, ``calls`` what they were launched for."""

    def __init__(self, traits: DeviceTraits = H200) -> None:
        self._traits = traits
        self.launched: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()

    @property
    def traits(self) -> DeviceTraits:
        return self._traits

    def prepare(self, key: Hashable, plan: Plan) -> None:  # type: ignore[override]
        plan(self._traits)

    def launch(self, key: Hashable, plan: Plan, inputs: Tensors, outputs: Tensors, packed: Tensors = ()) -> None:
        planned = plan(self._traits)
        self.launched.update(launch.source.entry for launch in planned.launches)
        if isinstance(key, LinearDecode):
            self.calls["linear_decode"] += 1
            _linear_decode(key, inputs, outputs)
        elif isinstance(key, UnpackTiles):
            self.calls["unpack_tiles"] += 1
            tiles, factors = inputs
            outputs[0].copy_(matrix_from_tiles(key.weight, tiles, factors, key.outputs, key.inputs))  # type: ignore
        elif isinstance(key, RmsNorm):
            self.calls["rms_norm"] += 1
            _rms_norm(key, inputs, outputs)
        elif isinstance(key, ExpertsDecode):
            self.calls["routed_experts"] += 1
            given = [*inputs, *([] if key.biased else [None, None])]
            form = {name: getattr(key, name) for name in ("activation", "gated", "alpha", "limit", "offset")}
            outputs[0].copy_(routed_experts(*given, **form))  # type: ignore
        elif isinstance(key, TiledExperts):
            self.calls["tiled_experts"] += 1
            _tiled_experts(key, inputs, outputs)
        elif isinstance(key, GatherRows):
            self.calls["gather_rows"] += 1
            table, indices = inputs
            assert table.shape[1:].numel() * table.itemsize == key.row_bytes and indices.numel() == key.count  # type: ignore
            outputs[0].copy_(table[indices.long()])  # type: ignore
        elif isinstance(key, Activate):
            self.calls["activate"] += 1
            _activate(key, inputs, outputs)
        elif isinstance(key, TopKSoftmax):
            self.calls["top_k_softmax"] += 1
            _top_k_softmax(key, inputs, outputs)
        else:
            assert isinstance(key, tuple)
            name, attributes = _operator(key)
            self.calls[name] += 1
            torch_ops.register()
            operator = getattr(torch.ops.trt_edgellm, name)
            values = [value for _, value in attributes]
            if packed or name in PACKED_ONLY:
                if packed:
                    rows = key[-1].rows
                    packed = (packed[0][: rows + 1], *(tensor[:rows] for tensor in packed[1:]))
                form = operator.speculative if len(packed) == 3 else operator.packed
                _packed(form, name, values, inputs, outputs, packed)
                return
            for output, result in zip(outputs, operator(*inputs, *values), strict=True):
                output.copy_(result)


def _packed(
    operator: Any, name: str, values: list, inputs: Tensors, outputs: Sequence[torch.Tensor], packed: Tensors
) -> None:
    """The rows of one call over packed rows; what belongs to other rows stays."""
    given = list(inputs)
    if name not in PACKED_ONLY:
        place = spec_of(name).input_index("context_lengths")
        given[place : place + 1] = packed
    results = operator(*given, *values)
    results = results if isinstance(results, tuple) else (results,)
    bounds = packed[0] if packed else None
    for output, result in zip(outputs, results, strict=True):
        is_tokens = bounds is not None and output.shape[0] == inputs[0].shape[0]  # type: ignore[union-attr]
        rows = slice(int(bounds[0]), int(bounds[-1])) if is_tokens else slice(None)  # type: ignore[index]
        output[rows].copy_(result[rows])


def _linear_decode(problem: LinearDecode, inputs: Tensors, outputs: Tensors) -> None:
    x, weight, up, bias, residual, norm_weight, *factors = inputs
    if problem.tiles is not None:
        sizes = problem.outputs, problem.inputs
        weight, up = (
            None if tiles is None else matrix_from_tiles(problem.tiles, tiles, factor, *sizes).to(x.dtype)
            for tiles, factor in zip((weight, up), factors, strict=True)
        )
    assert x.shape == (problem.rows, problem.inputs) and weight.shape == (problem.outputs, problem.inputs)
    assert x.stride() == (problem.x_stride, 1) and weight.is_contiguous()
    assert (residual is None) is not problem.residual and (bias is None) is not problem.bias
    assert residual is None or residual.stride() == (problem.residual_stride, 1)
    alike = (x, weight, up, bias, residual, norm_weight)
    assert {tensor.dtype for tensor in alike if tensor is not None} == {getattr(torch, problem.dtype.value)}
    wide = x.float()
    if problem.norm_epsilon is not None:
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + problem.norm_epsilon) * norm_weight.float()
    y = F.linear(wide, weight.float(), None if bias is None else bias.float())
    if problem.activation == "relu2":
        y = F.relu(y).square()
    elif problem.activation == "silu_gate":
        y = F.silu(y) * F.linear(wide, up.float())
    outputs[0].copy_(y if residual is None else y + residual.float())
    assert outputs[0].dtype == getattr(torch, problem.out_dtype.value) and outputs[0].is_contiguous()


def _tiled_experts(problem: TiledExperts, inputs: Tensors, outputs: Tensors) -> None:
    """Each half by a loop over routes."""
    names = (*tiled_experts.INPUTS[problem.half], *(tiled_experts.BIASES[problem.half] if problem.biased else ()))
    given: dict[str, Any] = dict(zip(names, inputs, strict=True))
    ids, inner, routes = given["expert_ids"], given.get("inner"), problem.tokens * problem.top_k
    assert all(tensor.is_contiguous() for name, tensor in given.items() if name != "x")
    if problem.half is not Half.DOWN:
        x, rows = given["x"], problem.up_rows
        assert x.shape == (problem.tokens, problem.hidden) and x.stride() == (problem.x_stride, 1)
        matrix = matrix_from_tiles(problem.up, given["up_tiles"], given["up_factors"], rows, problem.hidden)
        experts = matrix.to(x.dtype).view(problem.experts, -1, problem.hidden).float()
        products = torch.einsum("rh,rih->ri", x.float().repeat_interleave(problem.top_k, 0), experts[ids.view(-1)])
        if problem.biased:
            products = products + given["up_bias"][ids.view(-1)].float()
        numbers = (problem.alpha, problem.limit, problem.offset)
        form = ExpertActivation(problem.activation, problem.gated, *numbers)
        inner = expert_activation(products, form).to(x.dtype)
    if problem.half is Half.UP:
        outputs[0].copy_(inner)  # type: ignore[union-attr]
        return
    assert inner is not None and inner.shape == (routes, problem.intermediate)
    rows = problem.experts * problem.hidden
    matrix = matrix_from_tiles(problem.down, given["down_tiles"], given["down_factors"], rows, problem.intermediate)
    experts = matrix.to(inner.dtype).view(problem.experts, problem.hidden, -1).float()
    results = torch.einsum("ri,rhi->rh", inner.float(), experts[ids.view(-1)])
    if problem.biased:
        results = results + given["down_bias"][ids.view(-1)].float()
    results = results * given["expert_weights"].view(-1, 1)
    outputs[0].copy_(results.view(problem.tokens, problem.top_k, -1).sum(1))  # type: ignore[union-attr]


def _rms_norm(problem: RmsNorm, inputs: Tensors, outputs: Tensors) -> None:
    x, residual, gate, weight = inputs
    assert residual is None and (gate is not None) is (problem.gate or problem.gate_after)
    assert x.shape == (problem.rows, problem.columns) and weight.dtype.itemsize == problem.stored_weight.itemsize
    assert x.stride(0) == problem.stride("x") and (gate is None or gate.stride(0) == problem.stride("gate"))
    factor = 1.0 if gate is None else F.silu(gate.float())
    wide = x.float() * factor if problem.gate else x.float()
    grouped = wide.unflatten(-1, (-1, problem.group_columns))
    normed = grouped * torch.rsqrt(grouped.square().mean(-1, keepdim=True) + problem.epsilon)
    y = normed.flatten(-2) * weight.float()
    outputs[0].copy_((y * factor if problem.gate_after else y).view(outputs[0].shape))


def _activate(problem: Activate, inputs: Tensors, outputs: Sequence[torch.Tensor]) -> None:
    (up,), (y,) = inputs, outputs
    given = [tensor for tensor in (up, y) if tensor is not None]
    assert (up is not None) is problem.is_gated
    for tensor in given:
        assert tensor.is_contiguous() and tensor.numel() == problem.count and tensor.data_ptr() % 16 == 0
    y.copy_(F.relu(y.float()).square() if up is None else F.silu(y.float()) * up.float())


def _top_k_softmax(problem: TopKSoftmax, inputs: Tensors, outputs: Tensors) -> None:
    logits, (weights, ids) = inputs[0], outputs
    assert logits is not None and logits.shape[-1] == problem.experts
    largest, chosen = logits.topk(problem.top_k, -1)
    shares = largest.softmax(-1) if problem.normalized else logits.softmax(-1).gather(-1, chosen)
    weights.copy_(shares)  # type: ignore[union-attr]
    ids.copy_(chosen)  # type: ignore[union-attr]


def _operator(key: Any) -> tuple[str, tuple[tuple[str, Any], ...]]:
    """Name and attributes of an operator's call."""
    (name, attributes), *_ = key
    return name, attributes
