"""Slots of states in 8 bits as torch tensors. All work goes to the device's stream, and the host waits for none of it
except for copies to its own memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
import torch

from hybridge.artifact.bindings import NUM_SLOTS, Binding
from hybridge.runtime.engines.packed_rows import FP8, INT8, LARGEST, TYPES, PackedRows
from hybridge.runtime.engines.packed_state import PackedState, is_packable
from hybridge.runtime.engines.pool_sizes import PoolSizes
from hybridge.runtime.engines.torch.tensors import array_from_tensor, tensor_from_array, torch_from_dtype

_TORCH_TYPES = {INT8: torch.int8, FP8: torch.float8_e4m3fn}


class _Layers(NamedTuple):
    """Recurrent states of one shape and type: values [slots, layers, ..., row] in 8 bits, factors [slots, layers, ...].

    In one tensor, so that packing the states of all layers takes as many kernels as packing those of one.
    """

    specs: tuple[Binding, ...]
    values: torch.Tensor
    factors: torch.Tensor


class PackedSlots:
    """``sizes.num_packed`` slots of the states of ``specs``.

    layers: recurrent states. exact: the other states by pool name, [slots, ...].
    """

    def __init__(self, specs: Iterable[Binding], sizes: PoolSizes, device: torch.device) -> None:
        """Memory with unspecified contents; RuntimeError when there is too little."""
        self._kind, self._device = sizes.packed, device
        states = [spec for spec in specs if not spec.grows] if sizes.num_packed else []
        alike: dict[object, list[Binding]] = {}
        for spec in states:
            if is_packable(spec.name, spec.dtype.numpy):
                alike.setdefault((spec.shape, spec.dtype), []).append(spec)
        count = {NUM_SLOTS: sizes.num_packed}
        self.layers = tuple(self._allocate(tuple(group), sizes.num_packed) for group in alike.values())
        self._exact_specs = [spec for spec in states if not is_packable(spec.name, spec.dtype.numpy)]
        self.exact = {
            spec.name: torch.empty(spec.resolve(**count), dtype=torch_from_dtype(spec.dtype), device=device)
            for spec in self._exact_specs
        }
        if states:
            # As a tensor: torch multiplies by the inverse of a plain number, which rounds otherwise.
            self._largest = torch.full((), LARGEST[self._kind], device=device)

    def pack(self, pools: Mapping[str, torch.Tensor], source: int, target: int) -> None:
        """Write the states of slot ``source`` of ``pools`` to ``target``; the numbers are those of ``packed_rows``."""
        most = LARGEST.get(self._kind, 0.0)
        for layers in self.layers:
            rows = torch.stack([pools[spec.name][source] for spec in layers.specs]).float()
            largest = torch.linalg.vector_norm(rows, torch.inf, dim=-1)
            factors = torch.where(largest.isfinite(), largest / self._largest, torch.nan)
            rows.div_(torch.where(factors > 0, factors, 1.0).unsqueeze(-1)).clamp_(-most, most).nan_to_num_()
            layers.values[target].copy_(rows.round_() if self._kind == INT8 else rows)
            layers.factors[target].copy_(factors)
        for name, stored in self.exact.items():
            stored[target].copy_(pools[name][source])

    def unpack(self, pools: Mapping[str, torch.Tensor], source: int, target: int) -> None:
        """Unpack ``source`` into slot ``target`` of ``pools``."""
        for layers in self.layers:
            rows = layers.values[source].float().mul_(layers.factors[source].unsqueeze(-1))
            for spec, row in zip(layers.specs, rows, strict=True):
                pools[spec.name][target].copy_(row)
        for name, stored in self.exact.items():
            pools[name][target].copy_(stored[source])

    def copy_out(self, slot: int) -> PackedState:
        """A copy of one slot as it is, in host memory."""
        packed = {}
        for layers in self.layers:
            values = layers.values[slot].to("cpu", copy=True).view(torch.uint8).numpy().view(TYPES[self._kind])
            factors = layers.factors[slot].to("cpu", copy=True).numpy()
            for layer, spec in enumerate(layers.specs):
                packed[spec.name] = PackedRows(values[layer][None], factors[layer][None], spec.dtype.numpy)
        exact = {spec.name: array_from_tensor(self.exact[spec.name][slot], spec.dtype) for spec in self._exact_specs}
        return PackedState(packed, {name: array[None] for name, array in exact.items()})

    def copy_in(self, state: PackedState, slot: int) -> None:
        """Let ``slot`` be ``state``, which is of the same kind."""
        for layers in self.layers:
            rows = [state.packed[spec.name] for spec in layers.specs]
            values = np.concatenate([each.values for each in rows])
            layers.values[slot].view(torch.uint8).copy_(torch.from_numpy(values.view(np.uint8)))
            layers.factors[slot].copy_(torch.from_numpy(np.concatenate([each.factors for each in rows])))
        for spec in self._exact_specs:
            self.exact[spec.name][slot].copy_(tensor_from_array(state.exact[spec.name][0], spec.dtype))

    def _allocate(self, specs: tuple[Binding, ...], slots: int) -> _Layers:
        shape = (slots, len(specs), *(n for n in specs[0].shape if isinstance(n, int)))
        values = torch.empty(shape, dtype=_TORCH_TYPES[self._kind], device=self._device)
        return _Layers(specs, values, torch.empty(shape[:-1], device=self._device))
