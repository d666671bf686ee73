"""Graph inputs and outputs as config.json declares them."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from artifact.dtypes import DType

# Symbolic axes of the dense layout.
BATCH, SEQ, MAX_SEQ = "batch", "seq", "max_seq"
# Symbolic axes of the paged layout's pools.
NUM_BLOCKS, BLOCK_SIZE, NUM_SLOTS = "num_blocks", "block_size", "num_slots"


@dataclass(frozen=True)
class Binding:
    """One graph input or output.

    ``shape`` mixes numbers and symbolic axis names; ``replaced_by`` names the output that is the next
    value of a state input (None for anything that is not a state input).
    """

    name: str
    dtype: DType
    shape: tuple[int | str, ...]
    replaced_by: str | None = None

    @property
    def is_state(self) -> bool:
        return self.replaced_by is not None

    @property
    def grows(self) -> bool:
        """Whether a state grows with the tokens of a row, as keys and values do."""
        return MAX_SEQ in self.shape or BLOCK_SIZE in self.shape

    @property
    def unit_bytes(self) -> int:
        """Bytes of one row of a state; of one token of one row where it grows."""
        return prod(n for n in self.shape if isinstance(n, int)) * self.dtype.itemsize

    def resolve(self, **axes: int) -> tuple[int, ...]:
        """The shape with its symbolic axes replaced by ``axes``; KeyError for an axis not given."""
        return tuple(n if isinstance(n, int) else axes[n] for n in self.shape)


@dataclass(frozen=True)
class GraphBindings:
    """All inputs and outputs of a graph, in graph order."""

    inputs: tuple[Binding, ...]
    outputs: tuple[Binding, ...]

    @property
    def states(self) -> tuple[Binding, ...]:
        return tuple(b for b in self.inputs if b.is_state)

    def input(self, name: str) -> Binding:
        return next(b for b in self.inputs if b.name == name)

    def output(self, name: str) -> Binding:
        return next(b for b in self.outputs if b.name == name)
