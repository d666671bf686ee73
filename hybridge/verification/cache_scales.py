"""The scales of a checkpoint for FP8 keys and values, for the reference.

Like ``dequantized``, it shares only names of files and tensors with the exporter's readers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hybridge.exporter.checkpoint.checkpoint import CONFIG_FILE
from hybridge.exporter.checkpoint.entries import read_json
from hybridge.exporter.checkpoint.quantized.reader import MODELOPT_FILE, without_quantization
from hybridge.exporter.checkpoint.shards import read_shards, tensors_of

_NAME = re.compile(r"(?!mtp\.)(?:.*\.)?layers\.(\d+)\..*\b([kv])_scale")
_HEAD_NAME = re.compile(r"mtp\.layers\.(\d+)\..*\b([kv])_scale")


@dataclass(frozen=True)
class CacheScale:
    """What keys and values are divided by before they are rounded: one number, or one for each head."""

    keys: tuple[float, ...] = (1.0,)
    values: tuple[float, ...] = (1.0,)

    @property
    def pair(self) -> tuple[np.ndarray, np.ndarray]:
        """float32 [1 or kv_heads, 1, 1] each."""
        keys, values = (np.array(scales, np.float32).reshape(-1, 1, 1) for scales in (self.keys, self.values))
        return keys, values

    @property
    def in_pools(self) -> tuple[np.ndarray, np.ndarray]:
        """What keys and values in pools are divided by: pools hold powers of two themselves."""
        keys, values = (scales / np.exp2(np.floor(np.log2(scales))) for scales in self.pair)
        return keys, values


def stored_cache_scales(checkpoint: Path, head: bool = False) -> dict[int, CacheScale]:
    """Layer to the scales of its cache in the folder ``checkpoint``, where an artifact with an FP8 cache uses any.

    head: of the layers of the prediction head instead of the model's.
    """
    config = read_json(checkpoint, CONFIG_FILE) or {}
    _, quantization = without_quantization(config, read_json(checkpoint, MODELOPT_FILE))
    if quantization is None or not _is_e4m3(quantization):
        return {}
    found: dict[int, dict[str, tuple[float, ...]]] = {}
    for name, slot in tensors_of(read_shards(checkpoint)).items():
        if match := (_HEAD_NAME if head else _NAME).fullmatch(name):
            part = {"k": "keys", "v": "values"}[match[2]]
            found.setdefault(int(match[1]), {})[part] = tuple(slot.map().astype(np.float32).reshape(-1).tolist())
    return {layer: CacheScale(**own) for layer, own in found.items()}


def _is_e4m3(quantization: Mapping[str, object]) -> bool:
    scheme = quantization.get("kv_cache_scheme") or quantization.get("kv_cache_quant_algo") or "FP8"
    if isinstance(scheme, dict):
        return bool(scheme["type"] == "float" and scheme["num_bits"] == 8)
    return scheme == "FP8"
