"""Graph inputs and outputs as config.json declares them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from math import prod
from typing import Any

from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import ArtifactError
from hybridge.artifact.json_fields import Fields, is_count

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

    def to_json(self) -> dict[str, Any]:
        """A JSON object; one without replaced_by where that is None."""
        entry: dict[str, Any] = {"name": self.name, "dtype": self.dtype.value, "shape": list(self.shape)}
        return entry if self.replaced_by is None else {**entry, "replaced_by": self.replaced_by}

    @classmethod
    def from_json(cls, f: Fields) -> Binding:
        """The inverse; ArtifactError names the field that is wrong."""
        shape = tuple(f.array("shape"))
        if not all(isinstance(n, str) or is_count(n) for n in shape):
            raise f.fail("shape", "a list of counts and axis names")
        binding = cls(f.string("name"), f.enum("dtype", DType), shape, f.string("replaced_by", None))
        f.refuse_unknown()
        return binding

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
        """The input ``name``; ArtifactError if there is none."""
        return _named(self.inputs, name, "inputs")

    def output(self, name: str) -> Binding:
        """The output ``name``; ArtifactError if there is none."""
        return _named(self.outputs, name, "outputs")

    def check(self, where: str) -> None:
        """ArtifactError, which begins with ``where``: a name comes twice, a state has no output of its type and
        shape, or every output is a state's."""
        counts = Counter(b.name for b in (*self.inputs, *self.outputs))
        if repeated := sorted(name for name, count in counts.items() if count > 1):
            raise ArtifactError(f"{where}: bindings: {repeated[0]} is given twice: export the checkpoint again")
        outputs = {b.name: b for b in self.outputs}
        for state in self.states:
            output = outputs.get(state.replaced_by or "")
            if output is None or (output.dtype, output.shape) != (state.dtype, state.shape):
                raise ArtifactError(
                    f"{where}: state {state.name} has no output {state.replaced_by} of its type and shape: "
                    "export the checkpoint again"
                )
        if set(outputs) <= {state.replaced_by for state in self.states}:
            raise ArtifactError(
                f"{where}: bindings: expected an output for the result of a step, found only states: export the "
                "checkpoint again"
            )

    def to_json(self) -> dict[str, Any]:
        """A JSON object."""
        return {"inputs": [b.to_json() for b in self.inputs], "outputs": [b.to_json() for b in self.outputs]}

    @classmethod
    def from_json(cls, f: Fields) -> GraphBindings:
        """The inverse; ArtifactError names the field that is wrong."""
        return cls(f.map("inputs", Binding.from_json), f.map("outputs", Binding.from_json))


def _named(bindings: tuple[Binding, ...], name: str, where: str) -> Binding:
    for binding in bindings:
        if binding.name == name:
            return binding
    raise ArtifactError(f"bindings.{where}: expected {name}, found none: export the checkpoint again")
