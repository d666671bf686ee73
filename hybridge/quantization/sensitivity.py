"""The change of a model's predictions when some of its matrices are quantised."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from hybridge.evaluation.divergence import Divergence
from hybridge.quantization.calibration import Calibration

# Tokens that are compared, and the most bytes of their logits, which stay in memory.
_TOKENS = 1024
_LOGITS_BYTES = 1 << 29


class Sensitivity:
    """The predictions of the unquantised model over the first tokens of the calibration windows."""

    def __init__(self, calibration: Calibration) -> None:
        self._calibration = calibration
        self._batch = self._first_windows(calibration.windows)
        self._reference = self._logits()

    def divergence(self, weights: Mapping[str, Callable[[], np.ndarray]]) -> float:
        """Mean KL divergence, in nats, when modules get the weights [rows, columns] float32 that ``weights`` compute.

        Modules without a linear layer of their own in transformers keep theirs. One weight at a time is in memory.
        """
        hooks = [
            hook
            for module, layer in self._calibration.layers_of(weights).items()
            for hook in self._replacing(layer, weights[module])
        ]
        try:
            found = Divergence()
            for reference, logits, tokens in zip(self._reference, self._logits(), self._batch, strict=True):
                found.add(reference[:-1], logits[:-1], tokens[1:])
            return found.mean
        finally:
            for hook in hooks:
                hook.remove()

    def _replacing(self, layer: Any, weight: Callable[[], np.ndarray]) -> tuple[Any, Any]:
        """Hooks that give ``layer`` another weight while it computes."""
        stored: list[Any] = []

        def replace(_module: Any, _inputs: Any) -> None:
            stored.append(layer.weight.data)
            layer.weight.data = self._calibration.torch.from_numpy(weight()).to(stored[0].device)

        def restore(_module: Any, _inputs: Any, _output: Any) -> None:
            layer.weight.data = stored.pop()

        return layer.register_forward_pre_hook(replace), layer.register_forward_hook(restore, always_call=True)

    def _first_windows(self, windows: Sequence[np.ndarray]) -> np.ndarray:
        """Tokens [rows, T]: the beginnings of a few windows."""
        most = max(64, min(_TOKENS, _LOGITS_BYTES // (4 * self._calibration.vocab_size)))
        rows = min(len(windows), 4)
        length = min(len(windows[0]), max(16, most // rows))
        return np.stack([window[:length] for window in windows[:rows]])

    def _logits(self) -> list[np.ndarray]:
        return list(self._calibration.logits(self._batch))
