"""Products whose weights stay in 4 or 8 bits on a GPU: Linear nodes over tiles in place of dequantised matrices.

A ``TiledLinear`` node is a Linear node whose weights are tiles; its inputs are those of Linear, then the factors of the
weight and of the up_weight. A ``WeightTiles`` node, computed when weights are loaded, makes tiles and factors of a
weight: its inputs are the codes of the parts that are joined, their scales, and tensor scales (NVFP4) or zero points.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import onnx_ir as ir

from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import UnsupportedError
from hybridge.runtime.engines.torch.attributes import Attributes
from hybridge.runtime.engines.torch.fusion.linear import INPUTS, TILED_LINEAR, linears, take
from hybridge.runtime.engines.torch.graph import DOMAIN, clean_graph, constant_ints, fuse, producer
from hybridge.trt_plugins.kernels.fused.weight_tiles import GROUPS, Code, WeightFormat

WEIGHT_TILES = "WeightTiles"
_CODES: dict[ir.DataType, Code] = {
    ir.DataType.INT4: "int4",
    ir.DataType.FLOAT4E2M1: "e2m1",
    ir.DataType.INT8: "int8",
    ir.DataType.FLOAT8E4M3FN: "e4m3",
}
_COMPUTED = {ir.DataType.BFLOAT16: DType.BFLOAT16, ir.DataType.FLOAT16: DType.FLOAT16}


@dataclass(frozen=True)
class StoredWeight:
    """The part of a weight, all of it or some rows of it, that one DequantizeLinear makes.

    codes: the initializer [outputs, inputs]. tensor_scale: only in NVFP4. zero_points: shaped like the scales, or None.
    """

    form: WeightFormat
    codes: ir.Value = field(compare=False)
    scales: ir.Value = field(compare=False)
    tensor_scale: ir.Value | None = field(compare=False, default=None)
    zero_points: ir.Value | None = field(compare=False, default=None)


def stored_form(value: ir.Value | None) -> WeightFormat | None:
    """How the weight ``value`` is stored, None where it is no quantised weight that the kernels read."""
    stored = _stored(value)
    return None if stored is None else stored.form


def tile_weights(graph: ir.Graph) -> None:
    """Let Linear nodes over quantised weights, joined and divided ones too, read tiles of them."""
    made: dict[ir.Value, tuple[ir.Value, ir.Value]] = {}
    for node in linears(graph):
        weights = [weight for weight in (take(node, "weight"), take(node, "up_weight")) if weight is not None]
        forms = {common_form(weight) for weight in weights}
        x, form = take(node, "x"), next(iter(forms))
        if len(forms) > 1 or form is None or x is None or x.dtype not in (None, form.dtype.onnx):
            continue
        for weight in weights:
            if weight not in made:
                made[weight] = tiles_of(graph, node, weight, form)
        replaced = {weight: made[weight][0] for weight in weights}
        inputs = [value if value is None else replaced.get(value, value) for value in node.inputs[: len(INPUTS)]]
        factors = [made[weight][1] for weight in weights]
        attributes = {name: attribute.value for name, attribute in node.attributes.items()}
        outputs, columns = (int(size) for size in weights[0].shape)  # type: ignore[union-attr,arg-type]
        attributes |= {**form_attributes(form), "outputs": outputs, "inputs": columns}
        fuse([node.outputs[0]], TILED_LINEAR, [*inputs, *factors, *[None] * (2 - len(factors))], attributes)
    clean_graph(graph)


def form_attributes(form: WeightFormat, prefix: str = "") -> dict[str, str | int]:
    """Attributes that describe a format; each name begins with ``prefix``."""
    flags = {"byte_scales": int(form.byte_scales), "zero_points": int(form.zero_points)}
    attributes = {"code": form.code, "computed": form.dtype.onnx, "group": form.group, **flags}
    return {f"{prefix}{name}": value for name, value in attributes.items()}


def taken_form(attributes: Attributes, prefix: str = "") -> WeightFormat:
    """The format that a node names."""
    names = ("code", "computed", "group", "byte_scales", "zero_points")
    code, computed, group, *flags = (attributes.take(f"{prefix}{name}") for name in names)
    return WeightFormat(code, DType.from_onnx(computed), group, *(bool(flag) for flag in flags))


def tiles_of(graph: ir.Graph, node: ir.Node, weight: ir.Value, form: WeightFormat) -> tuple[ir.Value, ir.Value]:
    """Values of the tiles and factors of ``weight``, whose parts have format ``form``; inserted before ``node``."""
    parts, begin, end = _parts(weight)
    stored = [part for part in parts if part is not None]
    codes = [_bytes_of(graph, part.codes, form) for part in stored]
    scales = [part.scales for part in stored]
    more = [value for part in stored for value in (part.tensor_scale, part.zero_points) if value is not None]
    attributes: dict[str, Any] = {**form_attributes(form), "parts": len(stored), "begin": begin, "end": end}
    made = ir.node(WEIGHT_TILES, [*codes, *scales, *more], attributes, domain=DOMAIN, num_outputs=2)
    for output, kind in zip(made.outputs, ("tiles", "factors"), strict=True):
        output.name = f"{weight.name}.{kind}"
    graph.insert_before(node, made)
    return made.outputs[0], made.outputs[1]


def common_form(weight: ir.Value) -> WeightFormat | None:
    """The format of all parts of a weight, None where they have none in common."""
    parts, _, _ = _parts(weight)
    forms = {None if part is None else part.form for part in parts}
    return forms.pop() if len(forms) == 1 else None


def _parts(weight: ir.Value) -> tuple[Sequence[StoredWeight | None], int, int]:
    """The weights that are joined along their rows, and which rows of them ``weight`` is."""
    split = producer(weight, "Split")
    if split is not None and split.inputs[0] is not None and split.attributes.get_int("axis", 0) == 0:
        sizes = constant_ints(split.inputs[1]) or ()
        index = list(split.outputs).index(weight)
        parts, first, _ = _parts(split.inputs[0])
        if len(sizes) == len(split.outputs):
            return parts, first + sum(sizes[:index]), first + sum(sizes[: index + 1])
    concat = producer(weight, "Concat")
    whole = 0 if weight.shape is None else int(weight.shape[0])  # type: ignore[arg-type]
    if concat is not None and concat.attributes.get_int("axis", -1) == 0:
        return [_stored(part) for part in concat.inputs], 0, whole
    return [_stored(weight)], 0, whole


def _stored(value: ir.Value | None) -> StoredWeight | None:
    if value is None or value.dtype not in _COMPUTED or value.shape is None or len(value.shape) != 2:
        return None
    cast = producer(value, "Cast")
    node = producer(value if cast is None else cast.inputs[0], "DequantizeLinear")
    if node is None:
        return None
    codes, scales = node.inputs[0], node.inputs[1]
    if codes is None or scales is None or not isinstance(codes.const_value, ir.ExternalTensor):
        return None
    group, axis = node.attributes.get_int("block_size", 0), node.attributes.get_int("axis", 1)
    if codes.dtype not in _CODES or scales.shape is None or (group > 0 and axis != 1):
        return None
    if group == 0 and len(scales.shape) > 0 and axis != 0:
        return None
    levels = producer(scales, "DequantizeLinear")
    two_levels = group == 16 and codes.dtype == ir.DataType.FLOAT4E2M1 and levels is not None
    tensor_scale, zero_points = None, node.inputs[2] if len(node.inputs) > 2 else None
    if levels is not None and two_levels and levels.inputs[0].dtype == ir.DataType.FLOAT8E4M3FN:  # type: ignore[union-attr]
        scales, tensor_scale = levels.inputs[0], levels.inputs[1]
    columns, shifted = int(value.shape[1]), zero_points is not None  # type: ignore[arg-type]
    size = _kernel_group(group or columns) if group or shifted else 0
    try:
        form = WeightFormat(_CODES[codes.dtype], _COMPUTED[value.dtype], size, tensor_scale is not None, shifted)
        form.tile_inputs(columns)
    except UnsupportedError:
        return None
    assert scales is not None
    return StoredWeight(form, codes, scales, tensor_scale, zero_points)


def _kernel_group(size: int) -> int:
    """The kernels' largest group size that divides ``size``; ``size`` if there is none."""
    return next((group for group in sorted(GROUPS, reverse=True) if group and size % group == 0), size)


def _bytes_of(graph: ir.Graph, codes: ir.Value, form: WeightFormat) -> ir.Value:
    """The initializer of the same bytes as numbers of 8 bits."""
    stored = codes.const_value
    assert isinstance(stored, ir.ExternalTensor)
    name = f"{codes.name}.bytes"
    if name in graph.initializers:
        return graph.initializers[name]
    outputs, inputs = (int(size) for size in stored.shape.numpy())
    shape = ir.Shape((outputs, inputs * form.bits // 8))
    tensor = ir.ExternalTensor(
        stored.location,
        stored.offset,
        stored.length,
        ir.DataType.UINT8,
        shape=shape,
        name=name,
        base_dir=stored.base_dir,
    )
    value = ir.Value(name=name, shape=shape, type=ir.TensorType(ir.DataType.UINT8), const_value=tensor)
    graph.register_initializer(value)
    return value
