"""e4m3 weights of quant_method "fp8": of DeepSeek, Qwen and others, with scales of blocks, or one scale per matrix.

X.weight_scale_inv is what X.weight is multiplied with, whatever its name says.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import CheckpointError, UnsupportedError
from hybridge.artifact.safetensors_file import TensorSlot
from hybridge.exporter.checkpoint.quantized.experts import is_stacked, read_experts
from hybridge.exporter.checkpoint.quantized.scaled import as_stored, block_scales, one_scale
from hybridge.exporter.checkpoint.quantized.settings import WHERE, settings_of
from hybridge.exporter.checkpoint.quantized.stored import SCALE_TYPES, StoredTensors, matrix_shape
from hybridge.exporter.checkpoint.quantized.targets import check_names, matches, names_of
from hybridge.exporter.checkpoint.quantized.tensor import InputRounding, QuantizedTensor

_UNUSED = (
    *("quant_method", "scale_fmt", "dequantize", "kv_cache_scheme", "use_deep_gemm", "is_checkpoint_fp8_serialized"),
)


def read_fp8(config: Mapping[str, Any], stored: StoredTensors) -> Iterator[QuantizedTensor]:
    """The weights of a checkpoint with the quantization_config ``config``.

    UnsupportedError: an unsupported setting. CheckpointError: the tensors contradict the config.
    """
    fields = settings_of(config, _UNUSED)
    for name, known in (("fmt", ("e4m3", "float8_e4m3fn")), ("activation_scheme", ("dynamic", "static"))):
        if fields.string(name, known[0]) not in known:
            raise UnsupportedError(f"{WHERE}: {name}: expected one of {', '.join(known)}, found {config[name]!r}")
    block = fields.raw("weight_block_size", None)
    if block is not None:
        sizes = block if isinstance(block, list) else []
        if len(sizes) != 2 or not all(type(size) is int and size > 0 for size in sizes):
            raise fields.fail("weight_block_size", "[rows, columns]")
    excluded = [*names_of(fields, "modules_to_not_convert"), *names_of(fields, "ignored_layers")]
    fields.refuse_unknown()
    check_names(excluded, stored.all_modules, "modules_to_not_convert")
    suffix = "weight_scale_inv" if block else "weight_scale"
    for module in stored.modules(suffix):
        if matches(module, excluded):
            raise CheckpointError(f"{WHERE}: {module} is excluded from quantisation, but {module}.{suffix} exists")
        yield _weight(module, config, block, stored)
    stacked = (name.removesuffix("_scale_inv") for name in sorted(stored.left) if name.endswith("_scale_inv"))
    for name in [name for name in stacked if is_stacked(name, stored)]:
        parts = {"weight": name, suffix: f"{name}_scale_inv", "activation_scale": f"{name}_activation_scale"}
        yield read_experts(name, parts, lambda module, own: _weight(module, config, block, own), stored)


def _weight(module: str, config: Mapping[str, Any], block: list[int] | None, stored: StoredTensors) -> QuantizedTensor:
    weight = stored.take(f"{module}.weight", DType.FLOAT8E4M3FN)
    shape = matrix_shape(weight)
    scale = stored.take(f"{module}.weight_scale_inv" if block else f"{module}.weight_scale", *SCALE_TYPES)
    scales, columns = block_scales(scale, shape, *block) if block else (one_scale(scale), None)
    form = f"fp8 blocks of {block[0]} x {block[1]}" if block else "fp8"
    inputs, slots = _inputs(module, config, block, stored)
    name = f"{module}.weight"
    return QuantizedTensor(
        name, form, shape, as_stored(weight), scales, columns, (weight, scale, *slots), inputs=inputs
    )


def _inputs(
    module: str, config: Mapping[str, Any], block: list[int] | None, stored: StoredTensors
) -> tuple[InputRounding, tuple[TensorSlot, ...]]:
    """How the inputs of ``module`` are rounded, and the stored tensors that this reads."""
    if config.get("activation_scheme", "dynamic") == "dynamic":
        stored.drop_of(module, "input_scale", "activation_scale")
        return InputRounding(DType.FLOAT8E4M3FN, block[1] if block else 0), ()
    scale = stored.optional(f"{module}.activation_scale", *SCALE_TYPES)
    scale = scale or stored.take(f"{module}.input_scale", *SCALE_TYPES)
    return InputRounding(DType.FLOAT8E4M3FN, None, one_scale(scale)), (scale,)
