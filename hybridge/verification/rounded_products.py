"""Rounded inputs of the reference's products: of linear layers, and of modules that multiply by matrices themselves."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

# Rounds inputs [..., features] of a product.
Apply = Callable[[Any], Any]
# The rounding of the inputs of the product by a matrix; None where they stay as they are.
Find = Callable[[Any], Apply | None]
_SINGLE = re.compile(r"\.\d+\.(gate|up|down)_proj$")
_EXPERT = re.compile(r"\.(\d+)\.\w+$")


def parameters_of(model: Any, modules: Iterable[str]) -> dict[str, list[str]]:
    """Parameter of transformers' ``model`` to the ``modules`` of a checkpoint whose weights are loaded into it.

    Modules that the model does not have are left out.
    """
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightConverter, rename_source_key

    changes: Any = get_model_conversion_mapping(model)
    converters = [change for change in changes if isinstance(change, WeightConverter)]
    renamings = [change for change in changes if not isinstance(change, WeightConverter)]
    known: Any = dict(model.named_parameters(remove_duplicate=False))
    found: dict[str, list[str]] = {}
    for module in modules:
        # The weight of all experts of a layer may have the name of their module; those of gpt-oss's single experts are
        # joined by the reference itself.
        for stored in (f"{module}.weight", module, _SINGLE.sub(_joined, module)):
            name, _ = rename_source_key(stored, renamings, converters, model.base_model_prefix, known)
            if name in known:
                found.setdefault(name, []).append(module)
                break
    return found


def tied_names(model: Any) -> dict[int, list[str]]:
    """The names of each parameter of ``model``, by its identity."""
    found: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        found.setdefault(id(parameter), []).append(name)
    return found


def _joined(single: re.Match[str]) -> str:
    """The parameter of all experts that has the matrix of a single one."""
    return ".down_proj" if single[1] == "down" else ".gate_up_proj"


def use_name(module: str, use: int) -> str:
    """A name for a product by a checkpoint's ``module``, the first (0) or a later one in the order of layers."""
    return module if use == 0 else f"{module}@{use}"


def experts_name(matrix: str) -> str:
    """A name for the experts of a layer, one or all of which have the weight ``matrix``."""
    module = matrix.removesuffix(".experts").removesuffix(".weight")
    before, found, _ = module.partition(".experts")
    return f"{before if found else module.rpartition('.')[0]}.experts"


def experts_of(modules: Sequence[str], experts: int) -> list[str]:
    """Of each expert, the first of ``modules`` that is its own; the only one where it has all."""
    numbers = {module: int(match[1]) for module in reversed(modules) if (match := _EXPERT.search(module))}
    own = {number: module for module, number in numbers.items()}
    return [own.get(number, modules[0]) for number in range(experts)]


def expert_part(matrices: Any, each: Sequence[Apply]) -> Find:
    """Finds the rounding of an expert by its part of ``matrices`` [experts, rows, columns]."""

    def find(matrix: Any) -> Apply | None:
        size = matrices.stride(0) * matrices.element_size()
        number, rest = divmod(matrix.data_ptr() - matrices.data_ptr(), size)
        return each[number] if rest == 0 and 0 <= number < len(each) else None

    return find


def round_products(module: Any, find: Find) -> None:
    """Make the products that ``module`` computes itself, not by linear layers, round their inputs."""
    module.forward = partial(_forward, module.forward, find)


def _forward(forward: Any, find: Find, *inputs: Any, **named: Any) -> Any:
    import torch

    products = (torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__)

    class Products(torch.overrides.TorchFunctionMode):
        """Rounds x in the products linear(x, matrix), x @ matrix and matrix @ x."""

        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if function is torch.nn.functional.linear or function in products:
                if (apply := find(args[1])) is not None:
                    args = (apply(args[0]), *args[1:])
                elif function in products and (apply := find(args[0])) is not None:
                    args = (args[0], apply(args[1].mT).mT)
            return function(*args, **(kwargs or {}))

    with Products():
        return forward(*inputs, **named)
