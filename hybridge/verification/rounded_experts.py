"""Rounded inputs of experts in the reference: products by a slice of a weight of all experts, whatever the family."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from hybridge.verification.rounded_inputs import Rounding

# Parameters of transformers' modules of experts, and what a checkpoint calls the matrices of one expert in them.
_EACH = {"gate_up_proj": ("gate_proj", "up_proj"), "up_proj": ("up_proj",), "down_proj": ("down_proj",)}
# Names of the same parameters in modules of a checkpoint that has them elsewhere.
_MODULES = {"gate_up_proj": "input_linear", "down_proj": "output_linear"}
# Parameter to the rounding of the inputs of each expert.
Roundings = dict[str, list[Rounding]]
Apply = Callable[[Rounding, Any], Any]


def round_experts(module: Any, names: list[str], roundings: Mapping[str, Rounding], apply: Apply) -> int:
    """Make ``module``, called by one of ``names`` in the checkpoint, round the inputs of its experts.

    apply: rounds an input by a rounding. Returns the number of checkpoint modules affected; 0 for a module
    without experts.
    """
    found: Roundings = {}
    used: set[str] = set()
    for parameter, weight in module.named_parameters(recurse=False):
        if parameter in _EACH and weight.ndim == 3:
            for name in names:
                own, modules = _of_parameter(name, parameter, weight.shape[0], roundings)
                if own:
                    found[parameter] = own
                    used |= modules
    if found:
        module.forward = partial(_rounded_forward, module, module.forward, found, apply)
    return len(used)


def _of_parameter(
    name: str, parameter: str, experts: int, roundings: Mapping[str, Rounding]
) -> tuple[list[Rounding], set[str]]:
    """The rounding of each expert by the modules of the checkpoint that the parameter comes from, and these."""
    parent = name.rpartition(".")[0]
    for whole in (f"{name}.{parameter}", f"{parent}.{_MODULES.get(parameter)}"):
        if whole in roundings:
            return [roundings[whole].of_expert(number) for number in range(experts)], {whole}
    each = [[f"{name}.{number}.{last}" for last in _EACH[parameter]] for number in range(experts)]
    if any(module not in roundings for modules in each for module in modules):
        return [], set()
    return [roundings[modules[0]] for modules in each], {module for modules in each for module in modules}


def _rounded_forward(module: Any, forward: Any, roundings: Roundings, apply: Apply, *inputs: Any, **named: Any) -> Any:
    import torch

    class Products(torch.overrides.TorchFunctionMode):
        """Rounds the input of a linear function whose weight is an expert's."""

        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if function is torch.nn.functional.linear:
                rounding = _rounding_of(module, args[1], roundings)
                args = args if rounding is None else (apply(rounding, args[0]), *args[1:])
            return function(*args, **(kwargs or {}))

    with Products():
        return forward(*inputs, **named)


def _rounding_of(module: Any, weight: Any, roundings: Roundings) -> Rounding | None:
    """The rounding of the expert whose matrix in a parameter of ``module`` is ``weight``."""
    for name, each in roundings.items():
        parameter = getattr(module, name)
        size = parameter.stride(0) * parameter.element_size()
        number, rest = divmod(weight.data_ptr() - parameter.data_ptr(), size)
        if rest == 0 and 0 <= number < len(each):
            return each[number]
    return None
