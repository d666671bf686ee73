"""A model that is computed many times over the same tokens, each time from the first layer with other weights on."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from contextlib import ExitStack
from functools import partial
from typing import Any

import numpy as np

from hybridge.verification.transformers_model import TransformersModel


class ResumedModel:
    """Logits [rows, T, vocab] float32 of ``tokens`` [rows, T] int64, with the weights of some modules changed, but not
    of modules that share them.

    In memory is what one layer returns, so that requests should come in the order of ``first_layer``. Where layers
    exchange more than they return, no layer is skipped. CheckpointError: transformers cannot run the model.
    """

    def __init__(self, model: TransformersModel, tokens: np.ndarray) -> None:
        self._model, self._tokens = model, tokens
        self._layers = list(model.base.layers)
        # Module -> the layer in which, or after which, it is computed first.
        self._begins: dict[Any, int] = {}
        # The layer that a run can begin with, and what the one before it returned.
        self._stored: tuple[int, Any] = (0, None)
        self.reference, digests = self._first_run()
        self._can_skip = len(digests) == len(self._layers) and all(map(self._stores, digests))
        self._stored = (0, None)

    def first_layer(self, modules: Iterable[Any]) -> int:
        """The first layer that other weights of ``modules`` change; 0 if one of them did not run."""
        return min((self._begins.get(module, 0) for module in modules), default=0)

    def prepare(self, modules: Iterable[Any]) -> None:
        """Compute all before ``modules``, while they have the checkpoint's weights."""
        first = self.first_layer(modules) if self._can_skip else 0
        if first < self._stored[0]:
            self._stored = (0, None)
        while self._stored[0] < first:
            self._advance()

    def logits(self) -> Any:
        """The logits, where only modules differ that ``prepare`` was called for."""
        return self._run(self._stored[0])

    def _first_run(self) -> tuple[Any, list[str]]:
        """The logits with the checkpoint's weights, and digests of what each layer returned."""
        begun, digests = [0], list[str]()

        def begin(index: int, _module: Any, _inputs: Any) -> None:
            begun[0] = index

        def ran(module: Any, _inputs: Any) -> None:
            self._begins.setdefault(module, begun[0])

        def end(_module: Any, _inputs: Any, output: Any) -> None:
            digests.append(_digest(output))

        with ExitStack() as hooks:
            for index, layer in enumerate(self._layers):
                hooks.callback(layer.register_forward_pre_hook(partial(begin, index)).remove)
                hooks.callback(layer.register_forward_hook(end).remove)
            for module in self._model.model.modules():
                hooks.callback(module.register_forward_pre_hook(ran).remove)
            return self._run(0), digests

    def _stores(self, digest: str) -> bool:
        """Whether the next layer, after ``_advance``, returns the same without the layers before it."""
        try:
            self._advance()
        except Exception:  # of any type: the layer misses what an earlier one left for it
            return False
        return _digest(self._stored[1]) == digest

    def _advance(self) -> None:
        """Store what the next layer returns."""
        index = self._stored[0]

        def end(_module: Any, _inputs: Any, output: Any) -> None:
            self._stored = (index + 1, output)
            raise _LayerComputed

        hook = self._layers[index].register_forward_hook(end)
        try:
            self._run(index)
        except _LayerComputed:
            pass
        finally:
            hook.remove()

    def _run(self, first: int) -> Any:
        """The logits, where the layers before ``first`` return what is stored."""
        layers, torch = self._model.base.layers, self._model.torch
        try:
            for index in range(first):
                layers[index] = _replayed(torch, self._layers[index], self._stored[1])
            with self._model.failures("run"), torch.no_grad():
                tokens = torch.from_numpy(self._tokens).to(self._model.device)
                return self._model.model(tokens, use_cache=False).logits.float()
        finally:
            for index in range(first):
                layers[index] = self._layers[index]


class _LayerComputed(BaseException):
    """Ends a run after a layer; it is no error of the model."""


def _digest(output: Any) -> str:
    """SHA-256 of all tensors in what a layer returned."""
    digest = hashlib.sha256()
    for each in output if isinstance(output, tuple) else (output,):
        if hasattr(each, "detach"):
            digest.update(each.detach().float().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def _replayed(torch: Any, layer: Any, output: Any) -> Any:
    """A module in place of ``layer`` that returns copies of ``output``, as the next layer may write into them."""

    def copied(value: Any) -> Any:
        return value.clone() if isinstance(value, torch.Tensor) else value

    class Replayed(torch.nn.Module):  # type: ignore[misc]
        def __getattr__(self, name: str) -> Any:
            return getattr(layer, name)

        def forward(self, *_arguments: Any, **_named: Any) -> Any:
            return tuple(map(copied, output)) if isinstance(output, tuple) else copied(output)

    return Replayed()
