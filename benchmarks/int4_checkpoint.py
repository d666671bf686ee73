"""One random model as two checkpoints: in bfloat16, and with 4-bit matrices."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from benchmarks.random_checkpoint import INITIALIZER_RANGE, POOL_LENGTH, Config, random_values
from hybridge.artifact.dtypes import DType
from hybridge.artifact.safetensors_header import safetensors_header
from hybridge.quantization.config import quantization_config
from hybridge.quantization.packing import packed_words
from hybridge.quantization.schemes import IntegerScheme
from tools.sparse_checkpoint import tensors_of_config

INT4_GROUP = 128
# Name, type, shape and blocks of values.
Tensor = tuple[str, DType, tuple[int, ...], Iterable[np.ndarray]]
_GROUPS_OF_A_BLOCK = 8192


class Int4Pool:
    """Groups of random integers from -7 to 7, each times a power of two, which bfloat16 represents exactly.

    Matrices are slices of it; its odd number of groups keeps their rows different.
    """

    def __init__(self, random: np.random.Generator) -> None:
        self.groups = POOL_LENGTH // INT4_GROUP | 1
        codes = random.integers(-7, 8, (self.groups, INT4_GROUP), np.int8)
        scales = np.exp2(round(math.log2(INITIALIZER_RANGE / 4)) + random.integers(-1, 2, (self.groups, 1)))
        self.numbers = (codes * scales).astype(ml_dtypes.bfloat16)
        self.words, self.scales = packed_words(codes, 4), scales.astype(ml_dtypes.bfloat16)

    def cut(self, pool: np.ndarray, start: int, count: int) -> Iterator[np.ndarray]:
        """``count`` groups of ``pool`` from ``start`` on, in blocks."""
        while count:
            block = pool[start : start + min(count, _GROUPS_OF_A_BLOCK)]
            yield block
            count -= len(block)
            start = (start + len(block)) % self.groups


def write_int4_checkpoints(plain: Path, quantized: Path, config: Config, seed: int = 0) -> None:
    """Write the new folders ``plain`` and ``quantized``, the latter in the format of compressed-tensors.

    Matrices of products, including the head, are quantised; their numbers of inputs are multiples of INT4_GROUP.
    """
    random = np.random.default_rng(seed)
    pool, other = Int4Pool(random), random.standard_normal(POOL_LENGTH, np.float32) * INITIALIZER_RANGE
    in_plain: list[Tensor] = []
    in_quantized: list[Tensor] = []
    scheme, modules = IntegerScheme(4, INT4_GROUP), {}
    for name, (dtype, shape) in tensors_of_config(config).items():
        if len(shape) != 2 or not name.endswith(".weight") or "embed" in name:
            blocks = list(random_values(name, shape, other, random))
            in_plain.append((name, dtype, shape, blocks))
            in_quantized.append(in_plain[-1])
            continue
        module, (rows, columns) = name.removesuffix(".weight"), shape
        modules[module] = scheme
        count, start = rows * columns // INT4_GROUP, int(random.integers(pool.groups))
        in_plain.append((name, dtype, shape, pool.cut(pool.numbers, start, count)))
        words, scales = pool.cut(pool.words, start, count), pool.cut(pool.scales, start, count)
        in_quantized += [
            (f"{module}.weight_packed", DType.INT32, (rows, columns // 8), words),
            (f"{module}.weight_scale", DType.BFLOAT16, (rows, columns // INT4_GROUP), scales),
            (f"{module}.weight_shape", DType.INT64, (2,), [np.array(shape)]),
        ]
    _write(plain, config, in_plain)
    _write(quantized, {**config, "quantization_config": quantization_config(modules, [], scheme)}, in_quantized)


def _write(folder: Path, config: Config | dict[str, Any], tensors: list[Tensor]) -> None:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"torch_dtype": "bfloat16", **config}, indent=2) + "\n", "utf-8")
    with (folder / "model.safetensors").open("wb") as file:
        file.write(safetensors_header({name: (dtype, shape) for name, dtype, shape, _ in tensors}))
        for _, dtype, _, blocks in tensors:
            for block in blocks:
                file.write(np.ascontiguousarray(block, dtype.numpy).view(np.uint8).data)
