"""The routers of experts in the reference, whatever the family: products whose results are the scores of a top-k."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

_TOP_K = "topk"


def find_routers(model: Any, run: Callable[[], Any]) -> list[Any]:
    """The weights [experts, features] of the routers of ``model`` in the order in which ``run`` uses them."""
    import torch

    found: list[Any] = []
    last: list[Any] = []

    class Products(torch.overrides.TorchFunctionMode):
        """Records the weight of the last linear function before each choice among as many scores as it has rows."""

        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if function is torch.nn.functional.linear:
                last[:] = [args[1]]
            elif getattr(function, "__name__", "") == _TOP_K and last and args[0].shape[-1] == last[0].shape[0]:
                found.extend(own for own in model.parameters() if _same(own, last[0]))
                last.clear()
            return function(*args, **(kwargs or {}))

    with Products():
        run()
    return found


@contextlib.contextmanager
def given_router_inputs(
    routers: Mapping[str, Any], given: Mapping[str, np.ndarray], replaced: dict[str, np.ndarray]
) -> Iterator[None]:
    """Within the block, weights of ``routers`` in ``given`` get these inputs [T, features] instead of their own.

    Only the last of them where a router has fewer tokens. What each would have got is added to ``replaced``.
    """
    import torch

    used = {name: weight for name, weight in routers.items() if name in given}
    if not used:
        yield
        return

    class Products(torch.overrides.TorchFunctionMode):
        """Replaces the input of a linear function whose weight is a router's."""

        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if function is torch.nn.functional.linear:
                name = next((name for name, own in used.items() if _same(own, args[1])), None)
                if name is not None:
                    own = args[0]
                    replaced[name] = own.flatten(0, -2).float().numpy()
                    new = torch.from_numpy(given[name][-len(replaced[name]) :])
                    args = (new.reshape(own.shape).to(own.dtype), *args[1:])
            return function(*args, **(kwargs or {}))

    with Products():
        yield


def _same(parameter: Any, weight: Any) -> bool:
    """Whether ``weight`` has the numbers of ``parameter``, which may have been widened since the last run."""
    return weight.shape == parameter.shape and weight.data_ptr() == parameter.data_ptr()
