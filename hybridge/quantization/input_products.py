"""Sums of products of the inputs of linear layers over a text."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from hybridge.artifact.errors import CheckpointError, EngineError

# Added to the diagonal, in parts of its mean.
_DAMPING = 0.01
# Matrices of more columns are inverted in float32: in float64 they would take more than half a GB each.
_WIDE = 8192


@dataclass
class Products:
    """The inputs of ``modules``, which all read the same: ``sums`` [columns, columns] float32 of x xᵀ over ``tokens``
    inputs x.
    """

    modules: list[str] = field(default_factory=list)
    tokens: int = 0
    sums: Any = None

    def check(self) -> None:
        """EngineError, CheckpointError: an input was not finite, or all were zero."""
        diagonal = self.sums.diagonal()
        if not bool(diagonal.isfinite().all()):
            raise EngineError(
                f"{self.modules[0]}: expected finite inputs over the text, found others: choose the method mse"
            )
        if not bool(diagonal.any()):
            raise CheckpointError(
                f"{self.modules[0]}: expected inputs over the text, found only zeros: a weight before it is zero, or "
                "choose the method mse"
            )

    def mean_squares(self) -> np.ndarray:
        """The mean square of each feature, float64 [columns]."""
        return self.sums.diagonal().double().cpu().numpy() / self.tokens

    def factor(self) -> Any:
        """The ``factor`` of ``gptq_rounded``, float32: U with UᵀU the inverse of the damped sums, which are used up; an
        array, or a tensor on the GPU where the sums are.

        With the sums in reverse order MMᵀ, R, that is M in reverse order, is upper triangular, and U its inverse.
        """
        sums, self.sums = self.sums, None
        torch = _torch()
        diagonal = sums.diagonal()
        diagonal += _DAMPING * float(diagonal.mean())
        # Two matrices at most are in memory beside each other.
        matrix = sums.flip(0, 1)
        del sums, diagonal
        matrix = matrix if len(matrix) > _WIDE else matrix.double()
        torch.linalg.cholesky(matrix, out=matrix)
        matrix = matrix.flip(0, 1)
        found = torch.eye(len(matrix), dtype=matrix.dtype, device=matrix.device)
        torch.linalg.solve_triangular(matrix, found, upper=True, out=found)
        del matrix
        found = found.float()
        return found if found.is_cuda else found.numpy()


class InputProducts:
    """Collects ``Products`` of the inputs of ``modules``, by name, while they run within ``collected``."""

    def __init__(self, modules: Mapping[str, Any]) -> None:
        self._modules = modules
        self._found: dict[str, Products] = {}
        self._inputs: list[tuple[Any, Products]] = []  # of the current window

    @contextlib.contextmanager
    def collected(self) -> Iterator[None]:
        """While it is open, the inputs of the modules are added."""
        hooks = [module.register_forward_pre_hook(partial(self._add, name)) for name, module in self._modules.items()]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()
            self._inputs.clear()

    def next_window(self) -> None:
        """Forget the inputs by which modules with a common input are recognised."""
        self._inputs.clear()

    @property
    def groups(self) -> list[Products]:
        """The products of all modules that ran, each once."""
        return list({id(each): each for each in self._found.values()}.values())

    def of(self, module: str) -> Products | None:
        """The products of ``module``; None if it did not run."""
        return self._found.get(module)

    def add(self, name: str, inputs: Any) -> None:
        """Add the inputs [..., columns] of the module ``name``."""
        for seen, products in self._inputs:
            if (seen.data_ptr(), seen.numel(), seen.shape[-1]) == (inputs.data_ptr(), inputs.numel(), inputs.shape[-1]):
                if name not in products.modules:
                    products.modules.append(name)
                    self._found[name] = products
                return
        own = self._found.setdefault(name, Products([name]))
        self._inputs.append((inputs, own))
        rows = inputs.reshape(-1, inputs.shape[-1]).float()
        own.tokens += len(rows)
        if own.sums is None:
            own.sums = rows.T @ rows
        else:
            own.sums.addmm_(rows.T, rows)

    def _add(self, name: str, _module: Any, inputs: Sequence[Any]) -> None:
        self.add(name, inputs[0])


def _torch() -> Any:
    import torch

    return torch
