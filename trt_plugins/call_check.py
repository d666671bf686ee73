"""Checks of one call of an operator against its OpSpec: presence, types, ranks, sizes, attributes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import UnsupportedError
from hybridge.trt_plugins.spec import AttributeValue, OpSpec, TensorSpec


@dataclass(frozen=True)
class TensorType:
    """Type and shape of an argument; a dim that is not a plain int (a symbol, None) counts as unknown."""

    dtype: DType
    shape: tuple[object, ...]


@dataclass(frozen=True)
class CheckedCall:
    """The sizes and types that a valid call binds.

    dims: symbolic dim to size, None where unknown.
    types: type variable to type.
    attributes: every attribute, defaults filled in.
    has_time: whether the call has the token axis.
    """

    dims: Mapping[str, int | None]
    types: Mapping[str, DType]
    attributes: Mapping[str, AttributeValue]
    has_time: bool


def check_call(
    spec: OpSpec,
    arguments: Sequence[TensorType | None],
    attributes: Mapping[str, object],
    *,
    allow_float64: bool = False,
) -> CheckedCall:
    """Check one call; ``arguments`` in declared order, None for an absent optional input.

    allow_float64: besides the declared types, accept a call whose floating point arguments are all float64, which
    is the reference precision of the eager form.
    Raises UnsupportedError naming the operator and the argument.
    """
    arguments = _present(spec, arguments)
    has_time = _has_time(spec, arguments)
    dims = _bind_dims(spec, arguments, has_time)
    spec.check_dims(dims)
    types = _bind_types(spec, arguments, allow_float64)
    complete = spec.complete_attributes(attributes)
    spec.check_attribute_dims(dims, complete)
    return CheckedCall(dims, types, complete, has_time)


def _present(spec: OpSpec, arguments: Sequence[TensorType | None]) -> list[TensorType | None]:
    if len(arguments) > len(spec.inputs):
        raise UnsupportedError(
            f"{spec.qualified_name}: expected at most {len(spec.inputs)} inputs, "
            f"found {len(arguments)}; remove the rest"
        )
    padded = [*arguments, *[None] * (len(spec.inputs) - len(arguments))]
    for tensor, argument in zip(spec.inputs, padded, strict=True):
        if argument is None and not tensor.optional:
            raise UnsupportedError(f"{spec.qualified_name}: expected input {tensor.name}, found none; pass it")
    return padded


def _has_time(spec: OpSpec, arguments: Sequence[TensorType | None]) -> bool:
    """Whether the call has the optional axis, from the first present input that may have it."""
    for tensor, argument in zip(spec.inputs, arguments, strict=True):
        if argument is not None and tensor.has_optional_dim:
            return len(argument.shape) != len(tensor.dims_for(False))
    return False


def _bind_dims(spec: OpSpec, arguments: Sequence[TensorType | None], has_time: bool) -> dict[str, int | None]:
    bound: dict[str, int | None] = {}
    for tensor, argument in zip(spec.inputs, arguments, strict=True):
        if argument is None:
            continue
        dims = tensor.dims_for(has_time)
        if len(dims) != len(argument.shape):
            raise _shape_error(spec, tensor, dims, argument)
        for dim, size in zip(dims, argument.shape, strict=True):
            known = size if isinstance(size, int) else None
            expected = dim if isinstance(dim, int) else bound.get(dim)
            if known is not None and expected is not None and known != expected:
                raise _shape_error(spec, tensor, tuple(bound.get(str(d)) or d for d in dims), argument)
            if isinstance(dim, str):
                bound[dim] = known if expected is None else expected
    return bound


def _shape_error(spec: OpSpec, tensor: TensorSpec, dims: tuple, argument: TensorType) -> UnsupportedError:
    expected = ", ".join(str(dim) for dim in dims)
    found = ", ".join(str(size) for size in argument.shape)
    return UnsupportedError(
        f"{spec.qualified_name}: expected {tensor.name} of shape [{expected}], found [{found}]; reshape it"
    )


def _bind_types(spec: OpSpec, arguments: Sequence[TensorType | None], allow_float64: bool) -> dict[str, DType]:
    present = [(tensor, a.dtype) for tensor, a in zip(spec.inputs, arguments, strict=True) if a is not None]
    if allow_float64 and not any(dtype.is_floating and dtype is not DType.FLOAT64 for _, dtype in present):
        narrowed = [(tensor, DType.FLOAT32 if dtype is DType.FLOAT64 else dtype) for tensor, dtype in present]
        return dict.fromkeys(bind_types(spec, narrowed), DType.FLOAT64)
    return bind_types(spec, present)


def bind_types(spec: OpSpec, present: Sequence[tuple[TensorSpec, DType]]) -> dict[str, DType]:
    """Type variable to type, for the first inputs of a call or all of them; UnsupportedError naming a wrong one."""
    bound: dict[str, DType] = {}
    for tensor, found in present:
        allowed = (tensor.dtype,) if isinstance(tensor.dtype, DType) else _allowed(spec, tensor.dtype, bound)
        if found not in allowed:
            names = " or ".join(dict.fromkeys(dtype.value for dtype in allowed))
            raise UnsupportedError(
                f"{spec.qualified_name}: expected {tensor.name} of type {names}, found {found.value}; cast it"
            )
        if not isinstance(tensor.dtype, DType):
            bound[tensor.dtype] = found
    return bound


def _allowed(spec: OpSpec, name: str, bound: Mapping[str, DType]) -> tuple[DType, ...]:
    """The types that variable ``name`` may still take; a variable in ``one_of`` is bound by an earlier input."""
    if name in bound:
        return (bound[name],)
    variable = spec.type_variable(name)
    if not variable.one_of:
        return variable.allowed
    choices = (choice if isinstance(choice, DType) else bound[choice] for choice in variable.one_of)
    return tuple(choice for choice in choices if choice in variable.allowed)
