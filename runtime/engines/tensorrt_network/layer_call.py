"""One call of a layer: its inputs, its attributes, and the errors that name it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hybridge.artifact.errors import EngineError
from hybridge.trt_plugins.network.description import NetworkLayer

Outputs = Tensor | tuple[Tensor, ...]


@dataclass(frozen=True)
class LayerCall:
    """The values of one layer's inputs, None for absent ones; ``dtypes`` [outputs]: torch types to return.

    in_place: maps outputs that share the memory of an input to that input.
    """

    layer: NetworkLayer
    inputs: Sequence[Tensor | None]
    dtypes: Sequence[torch.dtype]
    in_place: Mapping[str, str]

    def __getitem__(self, attribute: str) -> Any:
        return self.layer.attributes[attribute]

    def input(self, index: int) -> Tensor:
        """Input ``index`` unchanged; EngineError if it is absent."""
        value = self.optional(index)
        if value is None:
            raise self.error(f"expected an input {index}, found none")
        return value

    def optional(self, index: int) -> Tensor | None:
        """Input ``index``, or None if it is absent."""
        return self.inputs[index] if index < len(self.inputs) else None

    def wide(self, index: int) -> Tensor:
        """Input ``index``; floating-point inputs as float32, in which layers compute."""
        return widened(self.input(index))

    def sizes(self, index: int, attribute: str | None = None) -> list[int] | None:
        """The integers of input ``index`` [n], or else of ``attribute``, as a new list; None if there is neither."""
        value = self.optional(index)
        if value is not None:
            return [int(size) for size in value.reshape(-1).tolist()]
        found = self.layer.attributes.get(attribute) if attribute is not None else None
        return None if found is None else list(found)

    def expect(self, name: str, *values: Any) -> Any:
        """The attribute ``name``; EngineError if it is not one of ``values``."""
        found = self.layer.attributes.get(name)
        if found not in values:
            computed = " or ".join(map(str, values))
            raise self.error(f"expected {name} {computed}, which alone are computed here, found {found}")
        return found

    def same_rank(self, *tensors: Tensor) -> None:
        """EngineError if ranks differ: TensorRT only broadcasts sizes of 1."""
        if len({tensor.dim() for tensor in tensors}) > 1:
            raise self.error(f"expected inputs of one rank, found {', '.join(str(list(t.shape)) for t in tensors)}")

    def axis(self, name: str, rank: int) -> int:
        """The attribute ``name`` as a non-negative axis."""
        axis = int(self.layer.attributes[name])
        if not -rank <= axis < rank:
            raise self.error(f"expected an axis of {rank} axes, found {axis}")
        return axis % rank

    def error(self, reason: str) -> EngineError:
        """An error that names the layer and the node that it comes from."""
        origin = f" of {self.layer.origin}" if self.layer.origin else ""
        return EngineError(f"{self.layer.title}{origin}: {reason}")


@dataclass(frozen=True)
class Kind:
    """``compute``: returns the outputs of a call. ``shape_inputs``: inputs whose values determine shapes."""

    compute: Callable[[LayerCall], Outputs]
    shape_inputs: tuple[int, ...] = ()


def widened(value: Tensor) -> Tensor:
    """A floating-point tensor as float32; others unchanged."""
    return value.float() if value.is_floating_point() else value


def axes_of_mask(mask: int, rank: int) -> list[int]:
    """The axes whose bits are set in ``mask``."""
    return [axis for axis in range(rank) if mask >> axis & 1]
