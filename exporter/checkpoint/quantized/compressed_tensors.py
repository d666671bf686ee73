"""Weights as the library compressed-tensors stores them (llm-compressor, vLLM, ``hybridge quantize``)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np

from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import CheckpointError, UnsupportedError
from hybridge.artifact.json_fields import Fields
from hybridge.artifact.safetensors_file import TensorSlot
from hybridge.exporter.checkpoint.quantized.experts import is_stacked, read_experts
from hybridge.exporter.checkpoint.quantized.nibbles import unpacked_words
from hybridge.exporter.checkpoint.quantized.packed_integers import (
    group_order,
    integer_values,
    order_tensor,
    row_block,
    scales_of_rows,
    words_of_rows,
    zero_points,
)
from hybridge.exporter.checkpoint.quantized.scaled import (
    as_stored,
    block_scales,
    one_scale,
    power_of_two_scales,
    reciprocal,
)
from hybridge.exporter.checkpoint.quantized.settings import WHERE, settings_of
from hybridge.exporter.checkpoint.quantized.stored import SCALE_TYPES, StoredTensors, check_groups, matrix_shape
from hybridge.exporter.checkpoint.quantized.targets import LINEAR, check_names, matches, names_of
from hybridge.exporter.checkpoint.quantized.tensor import GraphTensor, InputRounding, QuantizedTensor

METHOD = "compressed-tensors"
PACKED, NVFP4, MXFP4 = "pack-quantized", "nvfp4-pack-quantized", "mxfp4-pack-quantized"
INTEGERS, FLOATS, NAIVE = "int-quantized", "float-quantized", "naive-quantized"
FORMATS = (PACKED, INTEGERS, FLOATS, NAIVE, NVFP4, MXFP4)
_UNUSED = ("quant_method", "quantization_status", "global_compression_ratio", "version", "run_compressed")
_CALIBRATION = ("observer", "observer_kwargs", "scale_dtype", "zp_dtype")
# Values of actorder: whether the columns of a group are anywhere in a row.
_ORDERS = MappingProxyType(
    {None: False, False: False, "weight": False, "static": False, "group": True, "dynamic": True, True: True}
)
# Columns that share a scale in the formats of 4-bit floating-point numbers.
_FLOAT_BLOCKS = {NVFP4: 16, MXFP4: 32}
_INPUT_TYPES = {("int", 8): DType.INT8, ("float", 8): DType.FLOAT8E4M3FN, ("float", 4): DType.FLOAT4E2M1}
# Tensors of quantised activations; those that no rounding reads are dropped.
_OF_INPUTS = ("input_scale", "input_zero_point", "input_global_scale")
_EXPERT_PARTS = ("weight_shape", "weight_scale", "weight_zero_point", "weight_g_idx", "weight_global_scale")


@dataclass(frozen=True)
class Activations:
    """The input_activations of a group: how inputs of products are rounded. group: features that share a scale."""

    kind: str
    bits: int
    strategy: str
    group: int | None
    symmetric: bool
    dynamic: bool

    @property
    def name(self) -> str:
        """For reports."""
        kind = "fp" if self.kind == "float" else "int"
        offsets = "" if self.symmetric else ", with zero points"
        return f"{kind}{self.bits} ({'dynamic' if self.dynamic else 'static'}, by {self.strategy}{offsets})"


@dataclass(frozen=True)
class Scheme:
    """One entry of config_groups: how the weights of the modules ``targets`` are stored.

    kind: "int" or "float". group: columns that share a scale; 0: a whole row; None: the whole tensor.
    rows: rows that share a scale in blocks of ``rows`` x ``group``. activations: None: inputs are not rounded.
    ordered: the group of each column is stored.
    """

    targets: tuple[str, ...]
    format: str
    kind: str
    bits: int
    group: int | None
    symmetric: bool
    rows: int = 1
    activations: Activations | None = None
    ordered: bool = False

    @property
    def name(self) -> str:
        """For reports."""
        kind = {("float", 8): "fp8", ("float", 4): "fp4"}.get((self.kind, self.bits), f"int{self.bits}")
        return f"{METHOD} {self.format} {kind}"


def read_compressed_tensors(config: Mapping[str, Any], stored: StoredTensors) -> Iterator[QuantizedTensor]:
    """The weights of a checkpoint with the quantization_config ``config``.

    UnsupportedError: an unsupported scheme. CheckpointError: the tensors contradict the config.
    """
    fields = settings_of(config, _UNUSED)
    schemes = _schemes(fields)
    ignored = names_of(fields, "ignore")
    _refuse_extras(fields)
    modules = stored.all_modules
    check_names(ignored, modules, "ignore")
    for scheme in schemes:
        check_names(scheme.targets, modules, "targets")
    for module in sorted({*stored.modules("weight_packed"), *stored.modules("weight_scale")}):
        scheme = _scheme_of(module, schemes, ignored)
        numbers = next(
            name for name in ("weight_packed", "weight") if name == "weight" or f"{module}.{name}" in stored.left
        )
        if is_stacked(f"{module}.{numbers}", stored):
            parts = {last: f"{module}.{last}" for last in (numbers, *_EXPERT_PARTS, *_OF_INPUTS)}
            weight = read_experts(module, parts, partial(_weight, scheme), stored)
            yield replace(weight, name=f"{module}.weight")
        else:
            yield _weight(scheme, module, stored)


def _weight(scheme: Scheme, module: str, stored: StoredTensors) -> QuantizedTensor:
    weight = _with_inputs(_READERS[scheme.format](module, scheme, stored), module, scheme.activations, stored)
    stored.drop_of(module, *_OF_INPUTS)
    return weight


def _schemes(fields: Fields) -> tuple[Scheme, ...]:
    default = fields.string("format", PACKED)
    groups = fields.raw("config_groups")
    has_cache = bool(fields.raw("kv_cache_scheme", None))  # of which nothing else may be quantised
    if not isinstance(groups, dict) or not (groups or has_cache):
        raise fields.fail("config_groups", "an object with at least one group")
    return tuple(_scheme(f"{WHERE}: config_groups: {name}", group, default) for name, group in groups.items())


def _scheme(where: str, group: object, default: str) -> Scheme:
    if not isinstance(group, dict):
        raise UnsupportedError(f"{where}: expected an object with targets and weights, found {group!r}")
    fields = Fields(group, where, CheckpointError)
    form = fields.string("format", None) or default
    if form not in FORMATS:
        raise UnsupportedError(f"{where}: format: expected one of {', '.join(FORMATS)}, found {form!r}")
    if fields.raw("output_activations", None):
        raise UnsupportedError(f"{where}: output_activations: quantised outputs are not supported")
    inputs = fields.object("input_activations", None) if fields.raw("input_activations", None) else None
    activations = _activations(f"{where}: input_activations", inputs)
    targets = tuple(fields.strings("targets"))
    weights = Fields(fields.object("weights"), f"{where}: weights", CheckpointError)
    fields.refuse_unknown()
    return _weight_scheme(targets, form, weights, activations)


def _weight_scheme(targets: tuple[str, ...], form: str, weights: Fields, activations: Activations | None) -> Scheme:
    for name in _CALIBRATION:
        weights.raw(name, None)
    kind, bits, group = weights.string("type", "int"), weights.integer("num_bits"), weights.integer("group_size", None)
    kinds = {PACKED: (("int", 4), ("int", 8)), INTEGERS: (("int", 8),), FLOATS: (("float", 8),)}
    kinds |= {NAIVE: (("int", 8), ("float", 8)), NVFP4: (("float", 4),), MXFP4: (("float", 4),)}
    if (kind, bits) not in kinds[form]:
        known = " or ".join(f"{kind} of {bits} bits" for kind, bits in kinds[form])
        raise UnsupportedError(f"{weights.where}: format {form}: expected {known}, found {kind} of {bits} bits")
    if weights.raw("dynamic", False):
        raise weights.fail("dynamic", "false")
    strategy = weights.string("strategy", None) or ("group" if group is not None and group > 0 else "channel")
    block = weights.raw("block_structure", None)
    symmetric, order = weights.boolean("symmetric", True), weights.raw("actorder", None)
    weights.refuse_unknown()
    if not isinstance(order, str | bool | None) or order not in _ORDERS:
        known = ", ".join(name for name in _ORDERS if isinstance(name, str))
        raise UnsupportedError(f"{weights.where}: actorder: expected one of {known}, found {order!r}")
    known_strategies = ("tensor_group", "group") if form in _FLOAT_BLOCKS else ("group", "channel", "tensor", "block")
    if strategy not in known_strategies or (form == PACKED and strategy not in ("group", "channel")):
        raise UnsupportedError(f"{weights.where}: strategy: {strategy!r} is not supported in format {form}")
    if "group" in strategy and (group is None or group <= 0 or group != _FLOAT_BLOCKS.get(form, group)):
        raise weights.fail("group_size", f"{_FLOAT_BLOCKS.get(form, 'a positive number of')} columns in groups")
    if not symmetric and (kind == "float" or strategy in ("tensor", "block")):
        raise UnsupportedError(f"{weights.where}: symmetric: zero points of {kind} by {strategy} are not supported")
    if strategy == "block":
        if not isinstance(block, list) or len(block) != 2 or not all(type(n) is int and n > 0 for n in block):
            raise UnsupportedError(f"{weights.where}: block_structure: expected [rows, columns], found {block!r}")
        return Scheme(targets, form, kind, bits, block[1], symmetric, block[0], activations)
    own = {"channel": 0, "tensor": None}.get(strategy, group)
    return Scheme(targets, form, kind, bits, own, symmetric, 1, activations, _ORDERS[order] and strategy == "group")


def _activations(where: str, group: Mapping[str, Any] | None) -> Activations | None:
    """The parsed input_activations ``group``; None without them."""
    if not group:
        return None
    fields = Fields(group, where, CheckpointError)
    for name in (*_CALIBRATION, "block_structure"):
        fields.raw(name, None)
    dynamic = fields.raw("dynamic", False)  # "local": a scale per group, times a stored global scale
    activations = Activations(
        fields.string("type", "int"),
        fields.integer("num_bits"),
        fields.string("strategy", None) or "tensor",
        fields.integer("group_size", None),
        fields.boolean("symmetric", True),
        bool(dynamic),
    )
    fields.refuse_unknown()
    return activations


def _refuse_extras(fields: Fields) -> None:
    """Refuse fields that would change how the weights are read."""
    sparsity = fields.raw("sparsity_config", None)
    if sparsity and (not isinstance(sparsity, dict) or sparsity.get("format") not in (None, "dense")):
        raise UnsupportedError(f"{WHERE}: sparsity_config: sparse weights are not supported, found {sparsity!r}")
    if fields.raw("transform_config", None):
        raise UnsupportedError(f"{WHERE}: transform_config is not supported: take a checkpoint without it")
    fields.raw("kv_cache_scheme", None)
    fields.refuse_unknown()


def _scheme_of(module: str, schemes: tuple[Scheme, ...], ignored: tuple[str, ...]) -> Scheme:
    found = None
    if not matches(module, ignored):
        own = (scheme for scheme in schemes if matches(module, scheme.targets))
        found = next(own, None) or next((scheme for scheme in schemes if LINEAR in scheme.targets), None)
    if found is None:
        raise CheckpointError(
            f"{WHERE}: expected a group in config_groups for the quantised module {module}, found none"
        )
    return found


def _packed(module: str, scheme: Scheme, stored: StoredTensors) -> QuantizedTensor:
    """Element (n, k) of X.weight lies in bits of X.weight_packed [rows, words] int32, unsigned, from low to high."""
    name, bits = f"{module}.weight", scheme.bits
    rows, columns = _shape(name, stored)
    packed = stored.take(f"{name}_packed", DType.INT32, shape=(rows, -(-columns * bits // 32)))
    groups = check_groups(name, columns, scheme.group) if scheme.group else 1
    scale = stored.take(f"{name}_scale", *SCALE_TYPES, shape=(rows, groups))
    block = scheme.group or row_block(bits, columns)
    scales = as_stored(scale) if scheme.group else scales_of_rows(scale, rows, columns, block)
    sources = [packed, scale]
    zeros = None
    if not scheme.symmetric:
        words = stored.take(f"{name}_zero_point", DType.INT32, shape=(-(-rows * bits // 32), groups))
        sources.append(words)
        zeros = zero_points(bits, lambda: unpacked_words(words.map().T, bits)[:, :rows].T, scales.shape)
    order = None
    find = stored.take if scheme.ordered else stored.optional
    if (index := find(f"{name}_g_idx", DType.INT32, DType.INT64, shape=(columns,))) is not None:
        sources.append(index)
        numbers = np.array(index.map(), np.int64)
        if (numbers != -1).any():  # the library's sign for columns in their own order
            order = group_order(index.name, numbers, scheme.group or columns)
    values = integer_values(name, bits, (rows, columns), words_of_rows(packed, bits, columns), order)
    return QuantizedTensor(
        name,
        scheme.name,
        (rows, columns),
        values,
        scales,
        block,
        tuple(sources),
        zeros,
        order=order_tensor(order),
    )


def _with_inputs(
    weight: QuantizedTensor, module: str, activations: Activations | None, stored: StoredTensors
) -> QuantizedTensor:
    """``weight`` with the rounding of its inputs; ``unrounded`` names a rounding that is not supported."""
    if activations is None:
        return weight
    rounding, slots = _rounding(module, activations, stored)
    if rounding is None:
        return replace(weight, unrounded=activations.name)
    return replace(weight, inputs=rounding, sources=(*weight.sources, *slots))


def _rounding(
    module: str, activations: Activations, stored: StoredTensors
) -> tuple[InputRounding | None, tuple[TensorSlot, ...]]:
    """The rounding, None if it is not supported, and the stored tensors that it reads."""
    dtype = _INPUT_TYPES.get((activations.kind, activations.bits))
    if dtype is None or not activations.symmetric:
        return None, ()
    if dtype is DType.FLOAT4E2M1:
        if activations.strategy != "tensor_group" or activations.group != _FLOAT_BLOCKS[NVFP4]:
            return None, ()
        divisor = stored.take(f"{module}.input_global_scale", DType.FLOAT32)
        return InputRounding(dtype, activations.group, reciprocal(divisor)), (divisor,)
    if not activations.dynamic and activations.strategy == "tensor":
        scale = stored.take(f"{module}.input_scale", *SCALE_TYPES)
        return InputRounding(dtype, None, one_scale(scale)), (scale,)
    if activations.dynamic and activations.strategy in ("token", "tensor"):
        return InputRounding(dtype, 0), ()
    if activations.dynamic and activations.strategy == "group" and activations.group:
        return InputRounding(dtype, activations.group), ()
    return None, ()


def _shape(name: str, stored: StoredTensors) -> tuple[int, int]:
    """The shape that X.weight_shape holds."""
    found = stored.integers(f"{name}_shape", 2).tolist()
    packed = stored.shape_of(f"{name}_packed")
    if found[0] != packed[0] or not 0 < found[1] <= packed[1] * 32:
        raise CheckpointError(f"{name}_shape: expected [{packed[0]}, columns], found {found}: fetch it again")
    return found[0], found[1]


def _eight_bits(module: str, scheme: Scheme, stored: StoredTensors) -> QuantizedTensor:
    """X.weight [rows, columns] in 8 bits, to be multiplied by X.weight_scale."""
    name = f"{module}.weight"
    weight = stored.take(name, DType.FLOAT8E4M3FN if scheme.kind == "float" else DType.INT8)
    rows, columns = matrix_shape(weight)
    scale = stored.take(f"{name}_scale", *SCALE_TYPES)
    sources = [weight, scale]
    block: int | None = None
    if scheme.group is None:
        scales = one_scale(scale)
    elif scheme.rows > 1:
        scales, block = block_scales(scale, (rows, columns), scheme.rows, scheme.group)
    else:
        groups = check_groups(name, columns, scheme.group) if scheme.group else 1
        if scale.shape not in ((rows, groups), (rows,) * (groups == 1)):
            raise CheckpointError(f"{scale.name}: expected shape {[rows, groups]}, found {list(scale.shape)}")
        block = scheme.group or None
        scales = as_stored(scale, shape=(rows, groups) if block else (rows,))
    zeros = None
    if not scheme.symmetric:
        points = stored.take(f"{name}_zero_point", DType.INT8)
        if points.shape != scale.shape:
            raise CheckpointError(f"{points.name}: expected shape {list(scale.shape)}, found {list(points.shape)}")
        sources.append(points)
        zeros = as_stored(points, shape=scales.shape)
    return QuantizedTensor(
        name,
        scheme.name,
        (rows, columns),
        as_stored(weight),
        scales,
        block,
        tuple(sources),
        zeros,
    )


def _float4(module: str, scheme: Scheme, stored: StoredTensors) -> QuantizedTensor:
    """X.weight_packed [rows, columns / 2] bytes of two e2m1 numbers, the first in the low half.

    nvfp4: X.weight_scale e4m3 [rows, columns / 16] is divided by X.weight_global_scale. mxfp4: X.weight_scale
    [rows, columns / 32] holds exponents.
    """
    name = f"{module}.weight"
    packed = stored.take(f"{name}_packed", DType.UINT8)
    rows, columns = matrix_shape(packed)[0], 2 * matrix_shape(packed)[1]
    assert scheme.group is not None
    groups = check_groups(name, columns, scheme.group)
    global_scale: GraphTensor | None = None
    if scheme.format == NVFP4:
        scale = stored.take(f"{name}_scale", DType.FLOAT8E4M3FN, shape=(rows, groups))
        divisor = stored.take(f"{name}_global_scale", DType.FLOAT32)
        sources, scales, global_scale = [packed, scale, divisor], as_stored(scale), reciprocal(divisor)
    else:
        scale = stored.take(f"{name}_scale", DType.UINT8, shape=(rows, groups))
        sources, scales = [packed, scale], power_of_two_scales(scale)
    return QuantizedTensor(
        name,
        scheme.name,
        (rows, columns),
        as_stored(packed, DType.FLOAT4E2M1, (rows, columns)),
        scales,
        scheme.group,
        tuple(sources),
        global_scale=global_scale,
    )


_READERS = {
    PACKED: _packed,
    INTEGERS: _eight_bits,
    FLOATS: _eight_bits,
    NAIVE: _eight_bits,
    NVFP4: _float4,
    MXFP4: _float4,
}
