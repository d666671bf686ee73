"""The change of a model's predictions when a single group of its matrices is quantised."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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

    def divergence(self, weights: Mapping[str, np.ndarray]) -> float:
        """Mean KL divergence, in nats, when modules get these ``weights`` [rows, columns] float32."""
        torch, layers = self._calibration.torch, self._calibration.layers_of(weights)
        originals = {module: layer.weight.data for module, layer in layers.items()}
        try:
            for module, layer in layers.items():
                layer.weight.data = torch.from_numpy(weights[module]).to(originals[module].device)
            found = Divergence()
            for reference, logits, tokens in zip(self._reference, self._logits(), self._batch, strict=True):
                found.add(reference[:-1], logits[:-1], tokens[1:])
            return found.mean
        finally:
            for module, layer in layers.items():
                layer.weight.data = originals[module]

    def _first_windows(self, windows: Sequence[np.ndarray]) -> np.ndarray:
        """Tokens [rows, T]: the beginnings of a few windows."""
        most = max(64, min(_TOKENS, _LOGITS_BYTES // (4 * self._calibration.vocab_size)))
        rows = min(len(windows), 4)
        length = min(len(windows[0]), max(16, most // rows))
        return np.stack([window[:length] for window in windows[:rows]])

    def _logits(self) -> list[np.ndarray]:
        return [self._calibration.logits(row) for row in self._batch]
