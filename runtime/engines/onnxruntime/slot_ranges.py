"""States in ranges of slots as values that sessions bind; all sessions over the same pools share them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping

import numpy as np
import onnxruntime as ort

# Ranges that are kept; each takes less than a hundredth of its states.
_MOST = 1024


class SlotRanges:
    """Views of ``states``, the pools of states by name."""

    def __init__(self, states: Mapping[str, np.ndarray]) -> None:
        self._states = states
        self._ranges: OrderedDict[tuple[int, int], dict[str, ort.OrtValue]] = OrderedDict()

    def values(self, start: int, stop: int) -> Mapping[str, ort.OrtValue]:
        """The slots ``start`` to ``stop`` of each pool."""
        key = start, stop
        found = self._ranges.get(key)
        if found is None:
            views = {name: array[start:stop] for name, array in self._states.items()}
            found = self._ranges[key] = {name: ort.OrtValue.ortvalue_from_numpy(view) for name, view in views.items()}
            if len(self._ranges) > _MOST:
                self._ranges.popitem(last=False)
        else:
            self._ranges.move_to_end(key)
        return found
