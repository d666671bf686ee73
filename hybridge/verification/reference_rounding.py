"""Outputs of the reference's products, rounded as an engine in 16 bits rounds its own."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from typing import Any

from hybridge.artifact.dtypes import DType


@contextlib.contextmanager
def rounded_outputs(model: Any, routers: Collection[Any], dtype: DType | None) -> Iterator[None]:
    """Within the block, linear layers, convolutions and experts of ``model`` round their outputs to ``dtype``.

    dtype: None leaves them as they are. routers: weights whose products are not rounded.
    """
    import torch

    if dtype is None:
        yield
        return

    narrow, exact = getattr(torch, dtype.value), {id(weight) for weight in routers}

    def rounded(_module: Any, _inputs: Any, output: Any) -> Any:
        return output.to(narrow).to(output.dtype)

    def is_product(module: Any) -> bool:
        # The weights of a layer's experts, as those of a convolution, have three axes.
        own = list(module.parameters(recurse=False))
        kinds = isinstance(module, torch.nn.Linear) or any(weight.ndim == 3 for weight in own)
        return kinds and not any(id(weight) in exact for weight in own)

    hooks = [module.register_forward_hook(rounded) for module in model.modules() if is_product(module)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
