"""State buffers in NumPy memory that sessions read and write directly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np

from hybridge.artifact.bindings import BATCH, MAX_SEQ, Binding
from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import EngineError, RequestError
from hybridge.runtime.engines.dense import StateBuffer, StateSet
from hybridge.runtime.engines.onnxruntime.graph_form import StateLayout
from hybridge.runtime.engines.onnxruntime.huge_pages import zeros_together
from hybridge.runtime.engines.onnxruntime.small_pages import use_small_pages

# KV caches start with room for this many positions and at least double when they grow.
SMALLEST_CACHE = 256


class ArrayState(StateBuffer):
    """One state in an array of the session's layout, seen from outside in the layout of ``spec``.

    A session that cannot update the state in place writes to a second array, and the two alternate; ``parity`` is the
    index of the current one.
    """

    def __init__(self, spec: Binding, shape: tuple[int, ...], layout: StateLayout, array: np.ndarray) -> None:
        """array: zeros in the session's ``layout``."""
        self.spec, self.shape, self._layout = spec, shape, layout
        self._sequence_axis = spec.shape.index(MAX_SEQ) if MAX_SEQ in spec.shape else None
        self._arrays: list[np.ndarray | None] = [array, None]
        self.parity = 0

    @property
    def past(self) -> np.ndarray:
        """The array that holds the current state, in the session's layout."""
        array = self._arrays[self.parity]
        assert array is not None
        return array

    @property
    def other(self) -> np.ndarray:
        """The array that a session writes when it does not work in place."""
        array = self._arrays[1 - self.parity]
        if array is None:
            array = self._arrays[1 - self.parity] = np.zeros_like(self.past)
        return array

    @property
    def _view(self) -> np.ndarray:
        view = self.past.swapaxes(-1, -2) if self._layout.transposed else self.past
        return view[..., : self.shape[-1]]

    def read_row(self, row: int, length: int | None = None) -> np.ndarray:
        value = self._view[row]
        if length is not None and self._sequence_axis is not None:
            value = value.take(range(length), axis=self._sequence_axis - 1)
        return np.array(value, order="C")

    def write_row(self, row: int, value: np.ndarray) -> None:
        target = self._view[row]
        if self._sequence_axis is not None:
            window = [slice(None)] * target.ndim
            window[self._sequence_axis - 1] = slice(value.shape[self._sequence_axis - 1])
            target = target[tuple(window)]
        if target.shape != value.shape:
            raise RequestError(
                f"{self.spec.name}: expected a row of shape {list(target.shape)}, found {list(value.shape)}: "
                "use a state of the same artifact"
            )
        target[...] = value

    def copy_row(self, source: int, target: int) -> None:
        self.past[target] = self.past[source]

    def zero_rows(self, rows: list[int] | None = None, length: int | None = None) -> None:
        chosen = slice(None) if rows is None else rows
        if length is None or self._sequence_axis is None:
            self.past[chosen] = 0
        else:
            self._view.swapaxes(1, self._sequence_axis)[chosen, :length] = 0

    def keep_rows(self, start: int, stop: int) -> None:
        """Copy the rows that a session wrote to the current array."""
        self.past[start:stop] = self.other[start:stop]

    def swap(self) -> None:
        """Make the array that a session wrote the current one."""
        self.parity = 1 - self.parity


class ArrayStateSet(StateSet):
    """The states of ``batch`` rows.

    ``bound`` caches runs that are bound to these buffers, by a key that begins with ``parities``: a bit for each state,
    set when its second array is the current one. ``version`` changes whenever a state moves to another array.
    """

    def __init__(
        self, specs: tuple[Binding, ...], layouts: Mapping[str, StateLayout], batch: int, max_seq: int, limit: int
    ) -> None:
        """Zeroed states; RequestError when ``max_seq`` exceeds ``limit``, EngineError without enough memory."""
        self.batch, self._limit, self._layouts = batch, limit, layouts
        self._has_caches = any(MAX_SEQ in spec.shape for spec in specs)
        self._max_seq = self._capacity(max_seq)
        self._buffers = self._allocated(specs, self._max_seq)
        self.bound: dict[tuple, Any] = {}
        self.parities = self._read_parities()
        self.version = 0

    @property
    def buffers(self) -> Mapping[str, ArrayState]:
        return MappingProxyType(self._buffers)

    @property
    def max_seq(self) -> int:
        return self._max_seq

    def reserve(self, max_seq: int) -> None:
        if max_seq <= self._max_seq:
            return
        grown = self._capacity(max(max_seq, 2 * self._max_seq), max_seq)
        # What is bound holds the arrays, too.
        self.bound.clear()
        self.version += 1
        for spec in [buffer.spec for buffer in self._buffers.values() if MAX_SEQ in buffer.spec.shape]:
            # One at a time: only one cache ever exists twice.
            larger = self._allocated([spec], grown)[spec.name]
            larger.past[:, :, : self._max_seq] = self._buffers[spec.name].past[:, :, : self._max_seq]
            self._buffers[spec.name] = larger
        self._max_seq = grown
        self.parities = self._read_parities()

    def expect_few_tokens(self) -> None:
        for buffer in self._buffers.values():
            use_small_pages(buffer.past)

    def commit(self, names: frozenset[str], start: int, stop: int) -> None:
        """Take over what a session wrote to the other arrays of states ``names`` for rows start to stop."""
        if not names:
            return
        for name in names:
            if stop - start == self.batch:
                self._buffers[name].swap()
            else:
                self._buffers[name].keep_rows(start, stop)
        self.parities = self._read_parities()
        self.version += 1

    def _capacity(self, requested: int, needed: int | None = None) -> int:
        needed = requested if needed is None else needed
        if needed > self._limit:
            raise RequestError(
                f"expected at most {self._limit} tokens in one row, found {needed}: shorten the prompt, or export "
                "with a larger `max_seq_len`"
            )
        # A model without attention has no cache to size: its states hold any number of tokens.
        return min(self._limit, max(SMALLEST_CACHE, requested)) if self._has_caches else self._limit

    def _allocated(self, specs: Sequence[Binding], max_seq: int) -> dict[str, ArrayState]:
        axes = {BATCH: self.batch, MAX_SEQ: max_seq}
        try:
            arrays = self._arrays(specs, axes)
        except MemoryError as error:
            raise EngineError(
                f"expected memory for the states of {self.batch} rows of {max_seq} tokens, found too little: use a "
                "smaller batch, or shorter prompts"
            ) from error
        return {
            spec.name: ArrayState(spec, spec.resolve(**axes), self._layouts[spec.name], array)
            for spec, array in zip(specs, arrays, strict=True)
        }

    def _arrays(self, specs: Sequence[Binding], axes: Mapping[str, int]) -> list[np.ndarray]:
        """Zeros for each of ``specs``; states of a fixed size are in one block: every step writes all of them."""
        stored = [self._layouts[spec.name].stored(spec.resolve(**axes)) for spec in specs]
        types = [np.dtype(spec.dtype.numpy) for spec in specs]
        fixed = {n: (stored[n], types[n]) for n, spec in enumerate(specs) if MAX_SEQ not in spec.shape}
        together = zeros_together(fixed)
        return [together[n] if n in fixed else np.zeros(stored[n], types[n]) for n in range(len(specs))]

    def _read_parities(self) -> int:
        return sum(buffer.parity << bit for bit, buffer in enumerate(self._buffers.values()))


def engine_specs(states: tuple[Binding, ...]) -> tuple[Binding, ...]:
    """The artifact's states in the types that this engine holds: narrow floating types as float32."""
    narrow = (DType.FLOAT16, DType.BFLOAT16)
    return tuple(replace(s, dtype=DType.FLOAT32) if s.dtype in narrow else s for s in states)
