"""Convolution states of attention over convolved queries and keys (zaya), which transformers keeps in another form."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np


class ProjectedStates:
    """The states of the convolutions among a model's ``layers``, by index of the layer."""

    def __init__(self, layers: Iterable[Any]) -> None:
        self._projections: dict[int, Any] = {}
        self._outputs: dict[int, dict[str, np.ndarray]] = {}
        for index, layer in enumerate(layers):
            projections: Any = getattr(getattr(layer, "self_attn", None), "qkv_proj", None)
            if hasattr(projections, "v_proj_delayed"):
                self._projections[index] = projections
                projections.register_forward_pre_hook(self._forgetter(index))
                for name in ("q_proj", "k_proj", "v_proj_delayed"):
                    getattr(projections, name).register_forward_hook(self._recorder(index, name))

    def __contains__(self, index: int) -> bool:
        return index in self._projections

    def after(self, index: int, shapes: tuple[tuple[int, ...], ...]) -> tuple[np.ndarray, ...]:
        """The last inputs of one row after a run, in the only one of ``shapes``: [channels, kernel].

        Queries and keys once for each tap of the grouped convolution, then the delayed values without their bias.
        """
        projections, ((channels, kernel),) = self._projections[index], shapes
        q, k, v = (self._outputs[index][name] for name in ("q_proj", "k_proj", "v_proj_delayed"))
        bias = projections.v_proj_delayed.bias
        v = v if bias is None else v - bias.float().numpy()
        inputs = np.concatenate([q, k] * projections.grouped_kernel_size + [v], axis=-1).T
        padded = np.concatenate([np.zeros((channels, kernel), np.float32), inputs], axis=1)
        return (padded[:, -kernel:],)

    def _forgetter(self, index: int) -> Any:
        def forget(_module: Any, _inputs: Any) -> None:
            self._outputs[index] = {}

        return forget

    def _recorder(self, index: int, name: str) -> Any:
        def record(_module: Any, _inputs: Any, output: Any) -> None:
            # A second call gives what the first token takes from the token before.
            self._outputs[index].setdefault(name, output[0].float().numpy())

        return record
