"""A model whose decoder layers are computed one after another, each over all windows of a text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hybridge.artifact.mapped_file import release_pages
from hybridge.verification.transformers_model import TransformersModel

# Positional and named arguments of a layer, beside the hidden states.
_Call = tuple[tuple[Any, ...], dict[str, Any]]


class LayerWalk:
    """The hidden states of all windows, moved through one decoder layer at a time.

    In memory are the hidden states [windows, T, hidden] float32 and one layer in float32, however many layers there
    are. Windows have one length. CheckpointError: transformers cannot run the model.
    """

    def __init__(self, model: TransformersModel, windows: Sequence[np.ndarray]) -> None:
        self._model, self._windows = model, windows
        self._hidden: list[Any] = []
        # By window and layer; what equals the first window's is stored once.
        self._calls: list[list[_Call]] = []
        # Length of the tuples that layers return; 0 if they return a tensor.
        self._length = 0
        # What the last layer returned beside the hidden states, by window, where the next one takes some of it.
        self._beside: list[tuple[Any, ...]] = [() for _ in windows]
        with model.failures("run"), model.torch.no_grad():
            self._record()

    def run(self, index: int, after_window: Callable[[], None] | None = None) -> None:
        """Replace the hidden states by the outputs of layer ``index``, the next one; calls ``after_window``."""
        layer = self._model.base.layers[index]
        with self._model.failures("run"), self._model.torch.no_grad():
            for window, hidden in enumerate(self._hidden):
                beside = self._beside[window]
                arguments, named = self._calls[window][index]
                own = [beside[a.index] if isinstance(a, _Returned) else a for a in arguments]
                output = layer(hidden.to(self._model.device), *own, **named)
                self._hidden[window] = (output[0] if isinstance(output, tuple) else output).cpu()
                self._beside[window] = output if self._passes_more() else ()
                if after_window is not None:
                    after_window()
        for parameter in layer.parameters():
            release_pages(parameter.data_ptr(), parameter.nbytes)

    def head_inputs(self) -> Iterator[Any]:
        """The inputs [1, T, hidden] of the head, of each window, after all layers."""
        with self._model.failures("run"), self._model.torch.no_grad():
            for window, hidden in zip(self._windows, self._hidden, strict=True):
                yield self._without_layers(window, [hidden])[0]

    def _passes_more(self) -> bool:
        """Whether layers take more from the one before than hidden states (zaya)."""
        return any(isinstance(a, _Returned) for arguments, _ in self._calls[0] for a in arguments)

    def _record(self) -> None:
        """Find the first hidden states, and the other arguments of each layer."""
        layers = self._model.base.layers
        try:
            self._run_base(self._windows[0], [_recorder(self._model.torch, layers[0], None)])
        except _LengthFound as found:
            self._length = found.length
        for window in self._windows:
            _, recorders = self._without_layers(window, [])
            self._hidden.append(recorders[0].hidden.cpu())
            calls: list[_Call] = [each.call for each in recorders]
            if self._calls:
                pairs = zip(self._calls[0], calls, strict=True)
                calls = [self._shared(first, call) for first, call in pairs]
            self._calls.append(calls)

    def _shared(self, first: Any, other: Any) -> Any:
        """``other``, with the tensors of ``first`` that are equal to its own in their place."""
        if isinstance(other, tuple):
            return tuple(self._shared(*pair) for pair in zip(first, other, strict=True))
        if isinstance(other, dict):
            return {name: self._shared(first[name], value) for name, value in other.items()}
        is_tensor = isinstance(first, self._model.torch.Tensor) and isinstance(other, self._model.torch.Tensor)
        return first if is_tensor and self._model.torch.equal(first, other) else other

    def _without_layers(self, window: np.ndarray, outputs: list[Any]) -> tuple[Any, list[Any]]:
        """The final hidden states where layers return their inputs, the first one ``outputs``; and the recorders."""
        layers = list(self._model.base.layers)
        recorders = [_recorder(self._model.torch, layer, self._length) for layer in layers]
        if outputs:
            recorders[0].__dict__["output"] = outputs[0].to(self._model.device)
        return self._run_base(window, recorders), recorders

    def _run_base(self, window: np.ndarray, replaced: Sequence[Any]) -> Any:
        base, torch = self._model.base, self._model.torch
        originals = list(base.layers)
        try:
            for index, module in enumerate(replaced):
                base.layers[index] = module
            tokens = torch.from_numpy(window)[None].to(self._model.device)
            return base(tokens, use_cache=False).last_hidden_state
        finally:
            for index, layer in enumerate(originals):
                base.layers[index] = layer


class _LengthFound(Exception):
    """Ends a run of the model behind its first layer, so that no other layer is read from the disk."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.length = length


@dataclass(frozen=True)
class _Returned:
    """Stands for element ``index`` of the tuple that a layer returns."""

    index: int


def _recorder(torch: Any, layer: Any, length: int | None) -> Any:
    """A module that replaces ``layer``, and keeps what it is called with, and returns its ``output`` if that is set,
    else its input, in tuples of ``length``; None: it computes the layer, and raises _LengthFound.
    """

    class Recorder(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.__dict__.update(layer=layer, length=length, output=None, hidden=None, call=None)

        def __getattr__(self, name: str) -> Any:
            return getattr(layer, name)

        def forward(self, hidden: Any, *arguments: Any, **named: Any) -> Any:
            self.__dict__.update(hidden=hidden, call=(arguments, named))
            if length is None:
                found = layer(hidden, *arguments, **named)
                raise _LengthFound(len(found) if isinstance(found, tuple) else 0)
            output = hidden if self.output is None else self.output
            return (output, *map(_Returned, range(1, length))) if length else output

    return Recorder()
