"""Outputs of the reference's products, rounded as an engine in 16 bits rounds its own."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from typing import Any

from hybridge.artifact.dtypes import DType


@contextlib.contextmanager
def rounded_outputs(model: Any, routers: Collection[Any], dtype: DType | None) -> Iterator[None]:
    """Within the block, linear layers of ``model`` round their outputs to ``dtype``; None leaves them as they are.

    routers: weights whose products are not rounded.
    """
    import torch

    if dtype is None:
        yield
        return

    narrow, exact = getattr(torch, dtype.value), {id(weight) for weight in routers}

    def rounded(_module: Any, _inputs: Any, output: Any) -> Any:
        return output.to(narrow).to(output.dtype)

    linear = [module for module in model.modules() if isinstance(module, torch.nn.Linear)]
    hooks = [module.register_forward_hook(rounded) for module in linear if id(module.weight) not in exact]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
