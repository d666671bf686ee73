"""Scales that a checkpoint stores for keys and values of 8 bits.

X.k_scale and X.v_scale of the attention X, or of a module in it, have one number, or one for each head of keys and
values. A cached number is the key or value divided by its scale, rounded to e4m3.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hybridge.artifact.errors import CheckpointError, UnsupportedError
from hybridge.artifact.safetensors_file import TensorSlot
from hybridge.exporter.checkpoint.quantized.stored import SCALE_TYPES, StoredTensors

_KEYS, _VALUES = "k_scale", "v_scale"
_OFFSETS = ("k_bias", "v_bias", "k_zero_point", "v_zero_point")
# Scales of quantised queries, which no engine rounds.
_QUERIES = "q_scale"
_FP8 = "fp8"


@dataclass(frozen=True)
class CacheFactors:
    """float32 scales of keys and of values, each [1] or [kv_heads]."""

    keys: np.ndarray
    values: np.ndarray


@dataclass(frozen=True)
class CacheScales:
    """What a checkpoint says about quantised keys and values.

    kind: the type it asks for, "" where it names none. tensors: its scales and offsets by name.
    """

    kind: str = ""
    tensors: Mapping[str, TensorSlot] = field(default_factory=dict)

    @property
    def of_e4m3(self) -> bool:
        """Whether it has scales, and for e4m3."""
        return self.kind in ("", _FP8) and self._has(_KEYS, _VALUES)

    @property
    def notes(self) -> tuple[str, ...]:
        """Remarks on how much of it is honoured."""
        if not self.kind and not self.tensors:
            return ()
        used = "its k_scale and v_scale" if self.of_e4m3 else "a scale for each token and head"
        unused = [name for name in (_KEYS, _VALUES, _QUERIES) if self._has(name)]
        if self.of_e4m3:
            unused = [name for name in unused if name == _QUERIES]
        left = f"; its {' and '.join(unused)} {'is' if len(unused) == 1 else 'are'} not used" if unused else ""
        return (
            f"the checkpoint asks for keys and values in {self.kind or '8 bits'}: they get the compute type, as in "
            f"transformers, or with `kv_dtype='fp8_e4m3'` 8 bits with {used}{left}",
        )

    def factors(self, attention: str, kv_heads: int) -> CacheFactors | None:
        """The scales of the module ``attention``, 1 where only keys or only values have any; None without scales.

        CheckpointError: scales of another shape, or that are not positive and finite. UnsupportedError: offsets.
        """
        own = {name: slot for name, slot in self.tensors.items() if name.startswith(f"{attention}.")}
        found: dict[str, np.ndarray] = {}
        for name, slot in own.items():
            last = _last(name)
            if last in _OFFSETS:
                raise UnsupportedError(
                    f"{slot.path}: tensor {name}: offsets of keys and values are not supported with "
                    "`kv_dtype='fp8_e4m3'`: leave this setting out"
                )
            if last in found:
                raise CheckpointError(f"{slot.path}: expected one {last} of {attention}, found several")
            if last in (_KEYS, _VALUES):
                found[last] = _positive(slot, kv_heads)
        if not found:
            return None
        one = np.ones(1, np.float32)
        return CacheFactors(found.get(_KEYS, one), found.get(_VALUES, one))

    def _has(self, *last: str) -> bool:
        return any(_last(name) in last for name in self.tensors)


def take_cache_scales(config: Mapping[str, Any], stored: StoredTensors) -> CacheScales:
    """The scales among ``stored``, which are then taken; ``config``: the quantization_config."""
    scheme = config.get("kv_cache_scheme") or config.get("kv_cache_quant_algo")
    parts = (_KEYS, _VALUES, _QUERIES, *_OFFSETS)
    taken = [name for name in stored.left if "." in name and _last(name) in parts]
    return CacheScales(_kind(scheme), {name: stored.left.pop(name) for name in taken})


def _kind(scheme: object) -> str:
    if isinstance(scheme, dict):
        return f"{'fp' if scheme.get('type') == 'float' else 'int'}{scheme.get('num_bits', 8)}"
    return scheme.lower() if isinstance(scheme, str) else ""


def _positive(slot: TensorSlot, kv_heads: int) -> np.ndarray:
    """The scales in ``slot``, [1] or [kv_heads]."""
    size = int(np.prod(slot.shape))
    if slot.dtype not in SCALE_TYPES or size not in (1, kv_heads):
        raise CheckpointError(
            f"{slot.path}: tensor {slot.name}: expected 1 or {kv_heads} scales of type float16, bfloat16 or float32, "
            f"found shape {list(slot.shape)} of type {slot.dtype.value}: fetch the checkpoint again"
        )
    scales = slot.map().astype(np.float32).reshape(-1)
    bad = scales[~(np.isfinite(scales) & (scales > 0))]
    if len(bad):
        raise CheckpointError(
            f"{slot.path}: tensor {slot.name}: expected positive finite scales, found {bad[0]}: the checkpoint is "
            "damaged"
        )
    return scales


def _last(name: str) -> str:
    return name.rpartition(".")[2]
