"""States that transformers keeps in modules instead of a cache (the recurrent units of recurrent_gemma)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np


class UnitStates:
    """The states of the recurrent units among a model's ``layers``, by index of the layer."""

    def __init__(self, layers: Iterable[Any]) -> None:
        self._units = dict(_units(layers))
        self._inputs: dict[int, Any] = {}
        for index, unit in self._units.items():
            unit.linear_x.register_forward_hook(self._recorder(index))

    def __contains__(self, index: int) -> bool:
        return index in self._units

    def clear(self) -> None:
        """Let the next run begin with empty states."""
        for unit in self._units.values():
            unit.conv1d_state = None

    def after(self, index: int, shapes: tuple[tuple[int, ...], ...]) -> tuple[np.ndarray, ...]:
        """The convolution's last inputs and the recurrent state of one row after a run, in ``shapes``."""
        inputs, (channels, kernel) = self._inputs[index].float().numpy(), shapes[0]
        padded = np.concatenate([np.zeros((channels, kernel), np.float32), inputs], axis=1)
        state = self._units[index].rg_lru.recurrent_states[0].float().numpy()
        return padded[:, -kernel:], state.reshape(shapes[1])

    def _recorder(self, index: int) -> Any:
        def record(_module: Any, _inputs: Any, output: Any) -> None:
            self._inputs[index] = output[0].T

        return record


def _units(layers: Iterable[Any]) -> Iterator[tuple[int, Any]]:
    for index, layer in enumerate(layers):
        block = getattr(layer, "temporal_block", None)
        if hasattr(block, "rg_lru"):
            yield index, block
