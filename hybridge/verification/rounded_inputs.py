"""How a quantised checkpoint rounds the inputs of products, by each format's own formula, for the reference.

Like ``dequantized``, it shares only names of files and tensors with the exporter's readers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hybridge.artifact.safetensors_file import TensorSlot
from hybridge.exporter.checkpoint.checkpoint import CONFIG_FILE
from hybridge.exporter.checkpoint.entries import read_json
from hybridge.exporter.checkpoint.quantized.reader import MODELOPT_FILE, without_quantization
from hybridge.exporter.checkpoint.shards import read_shards, tensors_of

if TYPE_CHECKING:
    import torch

# In latent attention, engines multiply queries and outputs by this matrix, and never latents: nothing is rounded.
_ABSORBED = ".kv_b_proj"
Tensors = Mapping[str, TensorSlot]
INT8, FP8, FP4 = "int8", "fp8", "fp4"
# The magnitudes of e2m1 numbers, and the midpoints between them.
_E2M1_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_E2M1_MIDPOINTS = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)


@dataclass(frozen=True)
class Rounding:
    """Rounds x [..., features] float32. kind: INT8, FP8 or FP4.

    group: features that share a scale computed from them; 0: all of a token; None: ``scale`` is the only scale.
    scales: instead of ``scale``, those of the experts of a weight with an axis of them.
    factors: [features], by which x is multiplied before rounding and divided afterwards: the reference's weights
    include them.
    tie: a relative error that x may have; numbers as close to the middle of two others count as almost halfway.
    """

    kind: str
    group: int | None
    scale: float = 1.0
    factors: np.ndarray | None = None
    scales: tuple[float, ...] = ()
    tie: float = 0.0

    def of_expert(self, number: int) -> Rounding:
        """The rounding of one expert's inputs, for a weight with an expert axis."""
        return replace(self, scale=self.scales[number], scales=()) if self.scales else self

    def __call__(self, x: torch.Tensor, ties_swapped: bool = False) -> torch.Tensor:
        """The rounded inputs, in the shape of ``x``.

        ties_swapped: inputs almost halfway between two numbers round to the other one.
        """
        import torch

        nearest = partial(_swapped, self.tie) if ties_swapped else _nearest
        factors = None if self.factors is None else torch.from_numpy(self.factors)
        wide = x if factors is None else x * factors
        groups = wide.unflatten(-1, (-1, self.group)) if self.group else wide
        largest = groups.abs().amax(-1, keepdim=True)
        if self.kind == FP4:
            scales = nearest(largest / 6 / self.scale, _e4m3) * self.scale
        elif self.group is None:
            scales = torch.tensor(self.scale)
        else:
            scales = largest / (127 if self.kind == INT8 else 448)
        numbers = torch.where(scales > 0, groups / torch.where(scales > 0, scales, 1), 0)
        rounded = (nearest(numbers, _NUMBERS[self.kind]) * scales).reshape(x.shape)
        return rounded if factors is None else rounded / factors


# Relative to the largest number of a token or group: more than the difference of float32 products in another order.
_TIE = 2.0**-18
_Levels = Callable[["torch.Tensor"], "torch.Tensor"]


def _nearest(numbers: torch.Tensor, levels: _Levels) -> torch.Tensor:
    return levels(numbers)


def _swapped(tie: float, numbers: torch.Tensor, levels: _Levels) -> torch.Tensor:
    """The nearest of ``levels``, but the second nearest where a change by ``_TIE``, or by ``tie`` of a number itself,
    would make it the nearest."""
    import torch

    sizes, rounded = numbers.abs(), levels(numbers)
    step = torch.maximum(_TIE * sizes.amax(-1, keepdim=True), tie * sizes)
    above, below = levels(numbers + step), levels(numbers - step)
    return torch.where(above != rounded, above, below)


def _int8(numbers: torch.Tensor) -> torch.Tensor:
    return numbers.round().clamp(-128, 127)


def _e4m3(numbers: torch.Tensor) -> torch.Tensor:
    import torch

    return numbers.clamp(-448, 448).to(torch.float8_e4m3fn).float()


def _e2m1(numbers: torch.Tensor) -> torch.Tensor:
    """The nearest e2m1 numbers; at ties, those with an even mantissa."""
    import torch

    sizes, codes = numbers.abs(), torch.zeros_like(numbers, dtype=torch.long)
    for code, middle in enumerate(_E2M1_MIDPOINTS):
        codes += sizes > middle if code % 2 == 0 else sizes >= middle
    return torch.tensor(_E2M1_MAGNITUDES)[codes] * numbers.sign()


_NUMBERS = {INT8: _int8, FP8: _e4m3, FP4: _e2m1}


def stored_roundings(checkpoint: Path) -> dict[str, Rounding]:
    """Module to the rounding of its inputs in the folder ``checkpoint``; CheckpointError: it cannot be read."""
    config = read_json(checkpoint, CONFIG_FILE)
    if config is None:
        return {}
    _, quantization = without_quantization(config, read_json(checkpoint, MODELOPT_FILE))
    return {} if quantization is None else rounded_inputs(quantization, tensors_of(read_shards(checkpoint)))


def rounded_inputs(config: Mapping[str, Any], tensors: Tensors) -> dict[str, Rounding]:
    """Module to the rounding of its inputs, by the quantization_config ``config``, where it is simulated."""
    method = _METHODS.get(config["quant_method"])
    if method is not None:
        tensors = {**tensors, **_named_by_module(tensors)}
    found = () if method is None else method(config, tensors)
    return {name: own for name, own in found if own is not None and not name.endswith(_ABSORBED)}


def _named_by_module(tensors: Tensors) -> dict[str, TensorSlot]:
    """The tensors of weights X with an axis of experts by the names that a linear layer X would give them."""
    ends = {"_scale_inv": ".weight_scale_inv", "_weight_scale": ".weight_scale", "_input_scale": ".input_scale"}
    ends |= {"_activation_scale": ".activation_scale"}
    found: dict[str, TensorSlot] = {}
    for name, slot in tensors.items():
        if len(slot.shape) == 3:
            found |= {name + own: tensors[name + end] for end, own in ends.items() if name + end in tensors}
            if f"{name}.weight_scale" in found or f"{name}.weight_scale_inv" in found:
                found[f"{name}.weight"] = slot
    return found


def _compressed_tensors(config: Mapping[str, Any], tensors: Tensors) -> Iterator[tuple[str, Rounding | None]]:
    groups = config["config_groups"].values()
    for module in _quantized(tensors, "weight_packed", "weight_scale"):
        named = (group for group in groups if any(_matches(module, target) for target in group["targets"]))
        group = next(named, None) or next((group for group in groups if "Linear" in group["targets"]), None)
        yield module, None if group is None else _of_scheme(module, group.get("input_activations") or {}, tensors)


def _matches(module: str, target: str) -> bool:
    if target.startswith("re:"):
        return re.match(target[3:], module) is not None
    return fnmatchcase(module, target) if "*" in target else module == target


_KINDS = {("int", 8): INT8, ("float", 8): FP8, ("float", 4): FP4}


def _of_scheme(module: str, inputs: Mapping[str, Any], tensors: Tensors) -> Rounding | None:
    """The rounding by the input_activations ``inputs``; None: none, or not simulated."""
    kind = _KINDS.get((inputs.get("type", "int"), inputs.get("num_bits", 0)))
    strategy = inputs.get("strategy") or "tensor"
    if kind is None or not inputs.get("symmetric", True):
        return None
    if kind == FP4:
        if strategy != "tensor_group" or inputs.get("group_size") != 16:
            return None
        return _divided(_stored(FP4, 16, tensors[f"{module}.input_global_scale"]))
    if not inputs.get("dynamic"):
        return _stored(kind, None, tensors[f"{module}.input_scale"]) if strategy == "tensor" else None
    sizes = {"token": 0, "tensor": 0, "group": inputs.get("group_size")}
    return Rounding(kind, sizes[strategy]) if sizes.get(strategy) is not None else None


def _fp8(config: Mapping[str, Any], tensors: Tensors) -> Iterator[tuple[str, Rounding | None]]:
    block = config.get("weight_block_size")
    for module in _quantized(tensors, "weight_scale_inv" if block else "weight_scale"):
        columns = tensors[f"{module}.weight"].shape[-1]
        if config.get("activation_scheme", "dynamic") == "dynamic":
            yield module, Rounding(FP8, block[1] if block else 0) if not block or columns % block[1] == 0 else None
        else:
            scale = tensors.get(f"{module}.activation_scale", tensors.get(f"{module}.input_scale"))
            yield module, None if scale is None else _stored(FP8, None, scale)


def _modelopt(config: Mapping[str, Any], tensors: Tensors) -> Iterator[tuple[str, Rounding | None]]:
    for module in _quantized(tensors, "weight_scale"):
        algorithm = config["quant_algo"]
        if algorithm == "MIXED_PRECISION":
            layers = config["quantized_layers"]
            algorithm = (layers.get(module) or layers[module.rpartition(".")[0]])["quant_algo"]
        kind = {"NVFP4": FP4, "NVFP4_AWQ": FP4, "W8A8_SQ_PER_CHANNEL": INT8, "FP8": FP8}.get(algorithm)
        kind = FP8 if algorithm.startswith("W4A8") else kind
        stored, factors = tensors.get(f"{module}.input_scale"), tensors.get(f"{module}.pre_quant_scale")
        own_factors = None if factors is None else factors.map().astype(np.float32)
        if algorithm == "FP8_PER_CHANNEL_PER_TOKEN":
            yield module, Rounding(FP8, 0, factors=own_factors)
        elif kind is not None and stored is not None:
            yield module, _stored(kind, 16 if kind == FP4 else None, stored, own_factors)


def _quantized(tensors: Tensors, *suffixes: str) -> list[str]:
    """The modules that have a tensor with one of these last names, sorted."""
    return sorted({name.rpartition(".")[0] for name in tensors if name.rpartition(".")[2] in suffixes})


def _stored(kind: str, group: int | None, slot: TensorSlot, factors: np.ndarray | None = None) -> Rounding:
    """The rounding with the scale in ``slot``, or those of experts."""
    numbers = tuple(float(number) for number in slot.map().astype(np.float32).reshape(-1))
    if len(slot.shape) > 0 and len(numbers) > 1:
        return Rounding(kind, group, factors=factors, scales=numbers)
    return Rounding(kind, group, numbers[0], factors)


def _divided(rounding: Rounding) -> Rounding:
    """``rounding`` by divisors instead of scales."""
    return replace(rounding, scale=1 / rounding.scale, scales=tuple(1 / number for number in rounding.scales))


_METHODS = {"compressed-tensors": _compressed_tensors, "fp8": _fp8, "modelopt": _modelopt}
