"""Weights and states, added up by layer."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

from hybridge.artifact import names
from hybridge.artifact.bindings import Binding
from hybridge.artifact.config import RuntimeConfig
from hybridge.artifact.dtypes import DType

# At most 4 digits, an index below LAYERS (artifact.limits): the largest index decides the number of summaries.
_LAYER = re.compile(r"(?:^|\.)layers\.([0-9]{1,4})\.")
# Parts of a checkpoint besides its decoder, which may have their own layers: prediction head, vision tower.
_PARTS = ("mtp.", "model.visual.")


@dataclass(frozen=True)
class Weight:
    """One tensor as it is stored."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    nbytes: int


@dataclass(frozen=True)
class WeightTotal:
    """Weights outside the layers: a tensor (embedding, last norm, output projection), or all of a part beside the
    decoder, as "mtp.*"."""

    name: str
    parameters: int
    weight_bytes: int


@dataclass(frozen=True)
class StateSummary:
    """One state. ``bytes_per_row`` does not grow with the row's length, ``bytes_per_token`` does."""

    name: str
    layer: int
    dtype: str
    shape: tuple[int | str, ...]
    bytes_per_row: int
    bytes_per_token: int


@dataclass(frozen=True)
class LayerSummary:
    """One decoder layer; ``kind`` is its stateful mixer, "mlp" without one, "" where that is not known."""

    index: int
    kind: str
    parameters: int
    weight_bytes: int
    state_bytes_per_row: int
    state_bytes_per_token: int


def state_summaries(config: RuntimeConfig) -> tuple[StateSummary, ...]:
    """The states in graph order, each with the absolute index of its layer."""
    layers: dict[str, int] = {}
    for k, layer in enumerate(config.attention_layer_indices):
        layers |= dict.fromkeys((names.past_key(k), names.past_value(k), names.kv_pool(k), names.kv_scales(k)), layer)
    for r, layer in enumerate(config.recurrent_layer_indices):
        layers |= dict.fromkeys((names.conv_state(r), names.recurrent_state(r), names.state_scales(r)), layer)
    for ring in config.state_rings:
        layers |= dict.fromkeys(ring.names, config.recurrent_layer_indices[ring.r])
    return tuple(_state(binding, layers.get(binding.name, -1)) for binding in config.bindings.states)


def _state(binding: Binding, layer: int) -> StateSummary:
    fixed, growing = (0, binding.unit_bytes) if binding.grows else (binding.unit_bytes, 0)
    return StateSummary(binding.name, layer, binding.dtype.value, binding.shape, fixed, growing)


def layer_summaries(
    weights: Iterable[Weight], kinds: tuple[str, ...], states: Iterable[StateSummary]
) -> tuple[LayerSummary, ...]:
    """Totals by layer; there are as many layers as ``kinds`` or as the tensors' names say."""
    parameters: Counter[int] = Counter()
    weight_bytes: Counter[int] = Counter()
    for weight in weights:
        layer = layer_of(weight.name)
        if layer is not None:
            parameters[layer] += prod(weight.shape)
            weight_bytes[layer] += weight.nbytes
    rows: Counter[int] = Counter()
    tokens: Counter[int] = Counter()
    for state in states:
        rows[state.layer] += state.bytes_per_row
        tokens[state.layer] += state.bytes_per_token
    count = max([len(kinds), *(layer + 1 for layer in parameters)])
    return tuple(
        LayerSummary(i, kinds[i] if i < len(kinds) else "", parameters[i], weight_bytes[i], rows[i], tokens[i])
        for i in range(count)
    )


def totals_outside_layers(weights: Iterable[Weight]) -> tuple[WeightTotal, ...]:
    """The tensors that belong to no layer of the decoder, and its other parts, largest first."""
    parameters: Counter[str] = Counter()
    weight_bytes: Counter[str] = Counter()
    for weight in weights:
        if layer_of(weight.name) is None:
            name = next((f"{part}*" for part in _PARTS if weight.name.startswith(part)), weight.name)
            parameters[name] += prod(weight.shape)
            weight_bytes[name] += weight.nbytes
    return tuple(WeightTotal(name, parameters[name], nbytes) for name, nbytes in weight_bytes.most_common())


def bytes_by_type(weights: Iterable[Weight]) -> dict[str, int]:
    """Stored type -> bytes, largest first."""
    totals: Counter[str] = Counter()
    for weight in weights:
        totals[weight.dtype.value] += weight.nbytes
    return dict(totals.most_common())


def layer_of(tensor: str) -> int | None:
    """The decoder layer that the tensor of this name belongs to."""
    match = None if tensor.startswith(_PARTS) else _LAYER.search(tensor)
    return None if match is None else int(match[1])
