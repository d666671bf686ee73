"""The change of a model's predictions when some of its matrices are quantised."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from hybridge.artifact.errors import EngineError
from hybridge.quantization.calibration import Calibration

# The most and the fewest tokens that are compared. A run multiplies by every weight for each token: in large models it
# does so about _PRODUCTS times.
_MOST_TOKENS, _FEWEST_TOKENS = 1024, 256
_PRODUCTS = 1 << 38
# The most bytes of their logits, which stay in memory.
_LOGITS_BYTES = 1 << 29
# Numbers of one float64 block of logits: its copies stay in the processor's caches.
_BLOCK = 1 << 19


class Sensitivity:
    """The predictions of the unquantised model over the first tokens of the calibration windows."""

    def __init__(self, calibration: Calibration) -> None:
        self._calibration = calibration
        self._model = calibration.resumed(self._first_windows(calibration.windows))

    def first_layer(self, modules: Iterable[str]) -> int:
        """The first decoder layer that weights of ``modules`` change: groups in its order are measured faster."""
        return self._model.first_layer(self._calibration.layers_of(modules).values())

    def divergence(self, weights: Mapping[str, Callable[[], np.ndarray]]) -> float:
        """Mean KL divergence, in nats, when modules get the weights [rows, columns] float32 that ``weights`` compute.

        Modules without a linear layer of their own in transformers keep theirs. One weight at a time is in memory.
        """
        layers = self._calibration.layers_of(weights)
        self._model.prepare(layers.values())
        hooks = [hook for module, layer in layers.items() for hook in self._replacing(layer, weights[module])]
        try:
            return mean_divergence(self._model.reference[:, :-1], self._model.logits()[:, :-1])
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
        most = compared_tokens(self._calibration.parameters, self._calibration.vocab_size)
        rows = min(len(windows), 4)
        length = min(len(windows[0]), max(16, most // rows))
        return np.stack([window[:length] for window in windows[:rows]])


def compared_tokens(parameters: int, vocab_size: int) -> int:
    """Tokens over which the predictions of a model with ``parameters`` are compared; fewer where it is larger.

    256 rank groups almost as 1024 do: Spearman's coefficient is 0.985 for tiny-nemotron-h.
    """
    most = min(_MOST_TOKENS, max(_FEWEST_TOKENS, _PRODUCTS // parameters))
    return max(64, min(most, _LOGITS_BYTES // (4 * vocab_size)))


def mean_divergence(reference: Any, other: Any) -> float:
    """The mean of KL(reference || other), in nats, of logits [rows, T, vocab] in torch; computed in float64.

    EngineError where a position has NaN, +inf, or no finite number.
    """
    pairs = [logits.flatten(0, 1).split(max(1, _BLOCK // logits.shape[-1])) for logits in (reference, other)]
    total = sum(float(_divergences(*pair).sum()) for pair in zip(*pairs, strict=True))
    return total / (reference.shape[0] * reference.shape[1])


def _divergences(reference: Any, other: Any) -> Any:
    """KL divergence of each row of logits [n, vocab]."""
    for peaks in (reference.amax(-1), other.amax(-1)):
        if not bool(peaks.isfinite().all()):
            bad = float(peaks[~peaks.isfinite()][0])
            raise EngineError(f"expected finite logits, found {bad}: verify the model, or compute it in a wider type")
    one, two = (logits.double().log_softmax(-1) for logits in (reference, other))
    probability = one.exp()
    # What the reference excludes counts for nothing, also where the other excludes it too.
    return probability.mul_((one - two).masked_fill_(probability == 0, 0)).sum(-1).clamp_(min=0)
