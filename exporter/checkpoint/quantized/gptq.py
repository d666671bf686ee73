"""Weights as GPTQ's tools store them (AutoGPTQ, GPTQModel, AutoRound): int32 words of consecutive input features.

X.qweight [columns / n, rows] has n numbers of a column of the transposed matrix in a word, X.scales [groups, rows] and
X.qzeros [groups, rows / n]. Zero points are stored minus one, except with checkpoint_format "gptq_v2". X.g_idx
[columns] is the group of each input feature.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import UnsupportedError
from hybridge.artifact.safetensors_file import TensorSlot
from hybridge.exporter.checkpoint.quantized.nibbles import unpacked_words
from hybridge.exporter.checkpoint.quantized.packed_integers import (
    group_order,
    integer_values,
    order_tensor,
    row_block,
    scales_of_rows,
    transposed_scales,
    zero_points,
)
from hybridge.exporter.checkpoint.quantized.settings import WHERE, settings_of
from hybridge.exporter.checkpoint.quantized.stored import SCALE_TYPES, StoredTensors, check_groups, matrix_shape
from hybridge.exporter.checkpoint.quantized.tensor import QuantizedTensor

_VERSION_1, _VERSION_2 = "gptq", "gptq_v2"
# AutoRound's name of this way of packing.
_AUTO_ROUND = "auto_round:auto_gptq"
# Settings of calibration, kernels and origin.
_UNUSED = (
    *("quant_method", "static_groups", "damp_percent", "true_sequential", "model_name_or_path", "meta"),
    *("model_file_base_name", "sym", "pack_dtype", "act_group_aware", "use_exllama", "exllama_config", "version"),
    *("max_input_length", "dataset", "tokenizer", "batch_size", "pad_token_id", "block_name_to_quantize", "lm_head"),
    *("module_name_preceding_first_block", "use_cuda_fp16", "model_seqlen", "cache_block_outputs", "backend"),
    *("disable_exllama", "autoround_version", "iters", "low_gpu_mem_usage", "nsamples", "seqlen", "data_type"),
    *("extra_config", "modules_in_block_to_quantize", "modules_to_not_convert"),
)


def read_gptq(config: Mapping[str, Any], stored: StoredTensors) -> Iterator[QuantizedTensor]:
    """The weights of a checkpoint with the quantization_config ``config``.

    UnsupportedError: an unsupported setting. CheckpointError: the tensors contradict the config.
    """
    fields = settings_of(config, _UNUSED)
    bits, group = fields.integer("bits"), fields.integer("group_size")
    if bits not in (4, 8):
        raise UnsupportedError(f"{WHERE}: bits: expected 4 or 8, found {bits}")
    if group != -1 and group < 1:
        raise fields.fail("group_size", "a positive number of columns, or -1")
    version = fields.string("checkpoint_format", None) or _VERSION_1
    if version not in (_VERSION_1, _VERSION_2):
        raise UnsupportedError(f"{WHERE}: checkpoint_format: expected gptq or gptq_v2, found {version!r}")
    packing = fields.string("packing_format", None) or _AUTO_ROUND
    if packing != _AUTO_ROUND:
        raise UnsupportedError(f"{WHERE}: packing_format: expected {_AUTO_ROUND}, found {packing!r}")
    # Rules for single modules: those that they leave out have plain weights, others may have other numbers of bits.
    dynamic = fields.object("dynamic") if fields.raw("dynamic", None) is not None else {}
    if any(not name.startswith("-:") for name in dynamic):
        raise UnsupportedError(f"{WHERE}: dynamic: expected only rules that leave modules out, found others")
    # The columns of a group are anywhere in a row.
    ordered = fields.raw("desc_act", None) is not None and fields.boolean("desc_act") and group != -1
    fields.refuse_unknown()
    for module in stored.modules("qweight"):
        yield _weight(module, bits, group, ordered, 0 if version == _VERSION_2 else 1, stored)


def _weight(
    module: str, bits: int, group: int, ordered: bool, stored_less: int, stored: StoredTensors
) -> QuantizedTensor:
    count, name = 32 // bits, f"{module}.weight"
    words = stored.take(f"{module}.qweight", DType.INT32)
    columns, rows = matrix_shape(words)[0] * count, matrix_shape(words)[1]
    size = columns if group == -1 else group
    groups = check_groups(words.name, columns, size)
    scale = stored.take(f"{module}.scales", *SCALE_TYPES, shape=(groups, rows))
    zeros = stored.take(f"{module}.qzeros", DType.INT32, shape=(groups, -(-rows // count)))
    sources = [words, scale, zeros]
    order = None
    find = stored.take if ordered else stored.optional
    if (index := find(f"{module}.g_idx", DType.INT32, DType.INT64, shape=(columns,))) is not None:
        sources.append(index)
        order = group_order(index.name, np.array(index.map(), np.int64), size)
    block = row_block(bits, columns) if group == -1 else group
    scales = scales_of_rows(scale, rows, columns, block) if group == -1 else transposed_scales(scale, rows)
    return QuantizedTensor(
        name,
        f"gptq int{bits}",
        (rows, columns),
        integer_values(name, bits, (rows, columns), lambda part: unpacked_words(words.map()[:, part].T, bits), order),
        scales,
        block,
        tuple(sources),
        zero_points(bits, lambda: _zero_points(zeros, bits, rows, stored_less), scales.shape),
        order=order_tensor(order),
    )


def _zero_points(slot: TensorSlot, bits: int, rows: int, stored_less: int) -> np.ndarray:
    """Unsigned zero points [rows, groups]; one that is stored as the largest number is 0."""
    numbers = unpacked_words(slot.map(), bits)[:, :rows].T + np.uint8(stored_less)
    return numbers & np.uint8((1 << bits) - 1)
