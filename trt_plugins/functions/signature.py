"""The parameters on which a function body is specialised."""

from __future__ import annotations

from dataclasses import dataclass

from hybridge.artifact.dtypes import DType
from hybridge.trt_plugins.catalog import DENSE_VERSION, spec_of
from hybridge.trt_plugins.spec import AttributeValue, OpSpec, TensorSpec


@dataclass(frozen=True)
class Signature:
    """All that is static in a node and that its body depends on; sizes of tensors are read at run time.

    op: name of the operator.
    has_time: whether the body's tokens have a token axis: those of packed rows always have one, inside.
    types: type of every input in declared order; None for an absent one that the body does without.
    attributes: every attribute in declared order.
    kernel: width of the convolution, 0 for operators without one.
    version: of the operator's declaration.
    """

    op: str
    has_time: bool
    types: tuple[DType | None, ...]
    attributes: tuple[tuple[str, AttributeValue], ...]
    kernel: int = 0
    version: int = DENSE_VERSION

    @property
    def spec(self) -> OpSpec:
        return spec_of(self.op, self.version)

    def input(self, name: str) -> TensorSpec:
        return self.spec.inputs[self.spec.input_index(name)]

    def attribute(self, name: str) -> AttributeValue:
        return dict(self.attributes)[name]

    def type_of(self, name: str) -> DType:
        dtype = self.types[self.spec.input_index(name)]
        assert dtype is not None
        return dtype

    def has(self, name: str) -> bool:
        """Whether the node has the optional input ``name``."""
        return self.types[self.spec.input_index(name)] is not None
