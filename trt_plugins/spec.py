"""Declaration of an operator: inputs, outputs, types, symbolic dims, attributes and limits.

Everything else about an operator (torch schema, ONNX schema, ONNX function, plugin) is generated from its
``OpSpec`` or checked against it. This module imports neither torch nor onnx.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import UnsupportedError

AttributeValue = int | float | str
AttributeKind = Literal["int", "float", "string"]

OPTIONAL_MARK = "?"
_KIND_TYPES: dict[str, tuple[type, ...]] = {"int": (int,), "float": (float, int), "string": (str,)}


@dataclass(frozen=True)
class TypeVariable:
    """A type that a call binds.

    allowed: the types it may be bound to.
    one_of: when not empty, the bound type must also equal one of these: a DType, or another variable's name.
    """

    name: str
    allowed: tuple[DType, ...]
    one_of: tuple[DType | str, ...] = ()


@dataclass(frozen=True)
class TensorSpec:
    """One input or output.

    dtype: a fixed DType or the name of a TypeVariable.
    dims: symbolic names or literal sizes; a name ending in "?" is an axis that a call may leave out
        everywhere at once (the token axis, absent in the decode form).
    optional: the input may be absent, which equals a tensor of ``absent`` everywhere.
    selects: an optional input whose absence selects another body: it is then absent from the function, too.
    """

    name: str
    dtype: DType | str
    dims: tuple[str | int, ...]
    doc: str
    optional: bool = False
    absent: float = 0.0
    selects: bool = False

    def dims_for(self, has_time: bool) -> tuple[str | int, ...]:
        """The dims of the form with (True) or without (False) the optional axis, marks removed."""
        present = (dim for dim in self.dims if has_time or not _is_optional(dim))
        return tuple(dim.rstrip(OPTIONAL_MARK) if isinstance(dim, str) else dim for dim in present)

    @property
    def has_optional_dim(self) -> bool:
        return any(_is_optional(dim) for dim in self.dims)


@dataclass(frozen=True)
class AttributeSpec:
    """One attribute. A float is carried in IEEE single precision, infinities included."""

    name: str
    kind: AttributeKind
    default: AttributeValue
    doc: str
    choices: tuple[AttributeValue, ...] = ()
    minimum: float | None = None

    def checked(self, op: str, value: object) -> AttributeValue:
        """``value`` converted to the attribute's kind; UnsupportedError when it is not one of its values."""
        wrong_kind = isinstance(value, bool) or not isinstance(value, _KIND_TYPES[self.kind])
        if wrong_kind or value != value:
            raise UnsupportedError(
                f"{op}: expected attribute {self.name} of kind {self.kind}, found {value!r}; convert it"
            )
        assert isinstance(value, int | float | str)
        if self.choices and value not in self.choices:
            known = ", ".join(repr(choice) for choice in self.choices)
            raise UnsupportedError(
                f"{op}: expected attribute {self.name} to be one of {known}, found {value!r}; choose one of these"
            )
        if self.minimum is not None and not isinstance(value, str) and value < self.minimum:
            raise UnsupportedError(
                f"{op}: expected attribute {self.name} of at least {self.minimum:g}, found {value!r}; raise it"
            )
        return float(value) if self.kind == "float" else value


@dataclass(frozen=True)
class DimLimit:
    """Sizes of one dim that are supported: minimum..maximum, a multiple of ``multiple_of``, or ``also``."""

    dim: str
    minimum: int
    maximum: int
    multiple_of: int = 1
    also: int | None = None

    def holds(self, size: int) -> bool:
        return size == self.also or (self.minimum <= size <= self.maximum and size % self.multiple_of == 0)

    def __str__(self) -> str:
        step = f" in multiples of {self.multiple_of}" if self.multiple_of > 1 else ""
        also = "" if self.also is None else f"{self.also} or "
        return f"{self.dim} {also}from {self.minimum} to {self.maximum}{step}"


@dataclass(frozen=True)
class AttributeDim:
    """A dim whose size an attribute decides: ``sizes`` pairs each value with a size or with the dim that it equals."""

    dim: str
    attribute: str
    sizes: tuple[tuple[AttributeValue, int | str], ...]


@dataclass(frozen=True)
class OpSpec:
    """One operator of the domain ``trt_edgellm``.

    divides: pairs (divisor, dividend) of dims; the operator is defined only where the first divides the second.
    attribute_dims: dims whose size follows from an attribute.
    limits: sizes that the operator is defined for.
    kernel_limits: what the CUDA kernels support beyond that. The portable forms never refuse by them.
    has_kernels: false for an operator whose CUDA kernels, if any, are not for all sizes; TensorRT keeps its function.
    """

    name: str
    doc: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    attributes: tuple[AttributeSpec, ...]
    type_variables: tuple[TypeVariable, ...]
    divides: tuple[tuple[str, str], ...] = ()
    attribute_dims: tuple[AttributeDim, ...] = ()
    limits: tuple[DimLimit, ...] = ()
    kernel_limits: tuple[DimLimit, ...] = ()
    has_kernels: bool = True
    domain: str = "trt_edgellm"
    version: int = 1

    @property
    def qualified_name(self) -> str:
        return f"{self.domain}::{self.name}"

    def input_index(self, name: str) -> int:
        return [tensor.name for tensor in self.inputs].index(name)

    def type_variable(self, name: str) -> TypeVariable:
        return next(variable for variable in self.type_variables if variable.name == name)

    def output_source(self, output: TensorSpec) -> int:
        """Index of the input that has the output's type and shape."""
        return next(i for i, t in enumerate(self.inputs) if (t.dtype, t.dims) == (output.dtype, output.dims))

    def is_like_input(self, output: TensorSpec) -> bool:
        """Whether an input has the output's type and shape."""
        return any((t.dtype, t.dims) == (output.dtype, output.dims) for t in self.inputs)

    def output_sizes(self, output: TensorSpec) -> tuple[int | tuple[int, int], ...]:
        """The sizes of an output that is like no input: a number, or the input and the axis that have it."""
        found = {dim: (i, axis) for i, tensor in enumerate(self.inputs) for axis, dim in enumerate(tensor.dims)}
        return tuple(dim if isinstance(dim, int) else found[dim] for dim in output.dims)

    def complete_attributes(self, given: Mapping[str, object]) -> dict[str, AttributeValue]:
        """Every attribute in declared order, defaults filled in; UnsupportedError for unknown or bad ones."""
        known = {attribute.name for attribute in self.attributes}
        unknown = sorted(set(given) - known)
        if unknown:
            raise UnsupportedError(
                f"{self.qualified_name}: expected only the attributes {', '.join(sorted(known))}, "
                f"found {', '.join(unknown)}; remove them"
            )
        return {a.name: a.checked(self.qualified_name, given.get(a.name, a.default)) for a in self.attributes}

    def check_dims(self, dims: Mapping[str, int | None]) -> None:
        """UnsupportedError unless the known sizes of ``dims`` (None: unknown) are ones the operator is defined for."""
        for name, size in dims.items():
            if size is not None and size < 1:
                raise UnsupportedError(
                    f"{self.qualified_name}: expected dim {name} of at least 1, found {size}; pass non-empty tensors"
                )
        for limit in self.limits:
            size = dims.get(limit.dim)
            if size is not None and not limit.holds(size):
                raise UnsupportedError(f"{self.qualified_name}: expected {limit}, found {size}; reshape the tensor")
        for divisor, dividend in self.divides:
            small, large = dims.get(divisor), dims.get(dividend)
            if small is not None and large is not None and large % small:
                raise UnsupportedError(
                    f"{self.qualified_name}: expected {divisor} to divide {dividend}, "
                    f"found {divisor} {small} and {dividend} {large}; use a divisor of {large}"
                )

    def check_attribute_dims(self, dims: Mapping[str, int | None], attributes: Mapping[str, AttributeValue]) -> None:
        """UnsupportedError unless the known sizes of ``dims`` are those that the complete ``attributes`` ask for."""
        for rule in self.attribute_dims:
            requested = dict(rule.sizes)[attributes[rule.attribute]]
            size, expected = dims.get(rule.dim), dims.get(requested) if isinstance(requested, str) else requested
            if size is not None and expected is not None and size != expected:
                raise UnsupportedError(
                    f"{self.qualified_name}: expected {rule.dim} {expected} with {rule.attribute} "
                    f"{attributes[rule.attribute]!r}, found {size}; change the attribute or the tensor"
                )

    def kernel_gaps(self, dims: Mapping[str, int | None]) -> tuple[str, ...]:
        """The ``dims`` that the CUDA kernels do not support, one sentence each; empty when they run it.

        dims: symbolic dim to size; a dim that is missing or None counts as supported.
        """
        gaps = []
        for limit in self.kernel_limits:
            size = dims.get(limit.dim)
            if size is not None and not limit.holds(size):
                gaps.append(f"the kernels of {self.qualified_name} support {limit}, found {limit.dim} {size}")
        return tuple(gaps)

    def check_kernel_dims(self, dims: Mapping[str, int | None]) -> None:
        """UnsupportedError unless the operator is defined for ``dims`` and the CUDA kernels support them."""
        self.check_dims(dims)
        gaps = self.kernel_gaps(dims)
        if gaps:
            raise UnsupportedError(f"{'; '.join(gaps)}; use the portable form (plugins off)")


def _is_optional(dim: str | int) -> bool:
    return isinstance(dim, str) and dim.endswith(OPTIONAL_MARK)
