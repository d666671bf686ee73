"""How the weights of a module are stored in the format of the library compressed-tensors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hybridge.artifact.dtypes import DType

Layout = Mapping[str, tuple[DType, tuple[int, ...]]]


@dataclass(frozen=True)
class Scheme:
    """Signed integers of ``bits`` without zero points, in int32 words; ``group`` columns share a scale, None: a row."""

    bits: int
    group: int | None

    format = "pack-quantized"

    @property
    def name(self) -> str:
        """For reports."""
        return f"int{self.bits}, {'a scale a row' if self.group is None else f'groups of {self.group}'}"

    def layout(self, rows: int, columns: int, scale: DType) -> Layout:
        """Type and shape of each tensor of a weight [rows, columns], by what follows the module's name."""
        return {
            "weight_packed": (DType.INT32, (rows, math.ceil(columns * self.bits / 32))),
            "weight_scale": (scale, (rows, columns // (self.group or columns))),
            "weight_shape": (DType.INT64, (2,)),
        }

    def weights_config(self) -> dict[str, Any]:
        """The object "weights" of a group in quantization_config."""
        return {
            "num_bits": self.bits,
            "type": "int",
            "symmetric": True,
            "strategy": "channel" if self.group is None else "group",
            "group_size": self.group,
            "dynamic": False,
            "actorder": None,
            "block_structure": None,
            "observer": "minmax",
            "observer_kwargs": {},
        }


def quantization_config(modules: Mapping[str, Scheme], ignored: list[str], default: Scheme) -> dict[str, Any]:
    """quantization_config of a checkpoint: ``modules`` are quantised, the linear layers ``ignored`` are not.

    default: of the group that stands for all other linear layers.
    """
    schemes = list(dict.fromkeys([default, *modules.values()]))
    groups = {}
    for index, scheme in enumerate(schemes):
        names = [name for name, own in modules.items() if own == scheme]
        groups[f"group_{index}"] = {
            "targets": ["Linear"] if scheme == default else names,
            "weights": scheme.weights_config(),
            "input_activations": None,
            "output_activations": None,
            "format": scheme.format,
        }
    # The library takes the first group that matches: those with names come first.
    ordered = dict(sorted(groups.items(), key=lambda item: item[1]["targets"] == ["Linear"]))
    formats = {scheme.format for scheme in schemes}
    return {
        "quant_method": "compressed-tensors",
        "format": formats.pop() if len(formats) == 1 else "mixed-precision",
        "quantization_status": "compressed",
        "global_compression_ratio": None,
        "kv_cache_scheme": None,
        "config_groups": ordered,
        "ignore": ignored,
    }
