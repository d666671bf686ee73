"""Stored inputs of the replayed operators for the tokens of deferred rows."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from hybridge.runtime.engines.torch.device import TorchDevice
from hybridge.runtime.engines.torch.step_rows import Advancing

# Tensors of this many tokens' rows before a call may be those that it reads again.
_REMEMBERED = 6


class Memory(NamedTuple):
    """Rows of ``width`` numbers, one a token: the ``number``-th of a step."""

    number: int
    width: int
    dtype: torch.dtype


class Output(NamedTuple):
    """Tokens that a call computes again when it is replayed."""

    call: int
    number: int


@dataclass(frozen=True)
class InputLayout:
    """Location of a call's input: for token t, ``shape`` with ``strides`` from t * width + offset on, in numbers."""

    source: Memory | Output
    width: int
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def view(self, rows: torch.Tensor) -> torch.Tensor:
        """The input, of all tokens of ``rows``, which begin at the start of their memory."""
        return rows.as_strided((rows.shape[0], *self.shape), (self.width, *self.strides), self.offset)


@dataclass(frozen=True, eq=False)
class StoredCall:
    """operator: what was called. given: its inputs, None where ``layouts`` says where they are.

    token_bytes: of these, each counted by itself, for one token.
    """

    operator: Advancing
    given: tuple[object, ...]
    layouts: Mapping[int, InputLayout]
    token_bytes: int


class TokenMemory:
    """Memory for what ``capacity`` tokens of a step store, allocated once."""

    def __init__(self, device: TorchDevice, capacity: int) -> None:
        self._device, self.capacity = device, capacity
        self._rows: dict[Memory, torch.Tensor] = {}

    @property
    def token_bytes(self) -> int:
        """Bytes of one token."""
        return sum(memory.width * memory.dtype.itemsize for memory in self._rows)

    def rows(self, memory: Memory, tokens: int) -> torch.Tensor:
        """Its first rows [tokens, width]."""
        found = self._rows.get(memory)
        if found is None:
            found = torch.empty((self.capacity, memory.width), dtype=memory.dtype, device=self._device.torch)
            self._rows[memory] = found
        return found[:tokens]


class StoredCalls:
    """The calls of one step in their order; give them to its operators as ``StepRows.stored``, then ``finish``.

    tokens: how many are stored. chosen: which, int32 on the device; None: all that the step has.
    """

    def __init__(self, memory: TokenMemory, tokens: int, chosen: torch.Tensor | None = None) -> None:
        self._memory, self.tokens, self._chosen = memory, tokens, chosen
        self.calls: list[StoredCall] = []
        # The layout's number, set by the caller.
        self.number: int | None = None
        # Tensors that are still there, so that nothing else is at their addresses, and where their tokens are found.
        self._known: deque[tuple[torch.Tensor, Memory | Output]] = deque(maxlen=_REMEMBERED)
        self._copies: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._count = 0

    @property
    def layout(self) -> tuple[object, ...]:
        """Equal in steps whose calls find everything in the same memory."""
        return tuple((call.operator, tuple(call.layouts.items())) for call in self.calls)

    def add(
        self, operator: Advancing, given: Sequence[object], of_tokens: Sequence[int], outputs: Sequence[torch.Tensor]
    ) -> None:
        """``operator`` was called: store its inputs ``of_tokens`` [tokens, ...]."""
        inputs, layouts, nbytes = list(given), dict[int, InputLayout](), 0
        for index in of_tokens:
            tensor = inputs[index] if index < len(inputs) else None
            if isinstance(tensor, torch.Tensor):
                layouts[index], inputs[index] = self._layout_of(tensor), None
                nbytes += tensor[0].nbytes
        for index, output in enumerate(outputs):
            self._known.append((output, Output(len(self.calls), index)))
        self.calls.append(StoredCall(operator, tuple(inputs), layouts, nbytes))

    def finish(self) -> None:
        """The step has run."""
        by_dtype: dict[torch.dtype, list[tuple[torch.Tensor, torch.Tensor]]] = {}
        for target, source in self._copies:
            by_dtype.setdefault(source.dtype, []).append((target, source))
        for pairs in by_dtype.values():
            # One launch for tensors whose rows are stored one after another.
            torch._foreach_copy_([target for target, _ in pairs], [source for _, source in pairs])
        self._copies.clear()
        self._known.clear()

    def _layout_of(self, tensor: torch.Tensor) -> InputLayout:
        address = tensor.untyped_storage().data_ptr()
        for known, source in self._known:
            if known.untyped_storage().data_ptr() == address and known.stride(0) == tensor.stride(0):
                return _layout(tensor, source)
        whole = _whole_rows(tensor)
        rows = tensor.reshape(tensor.shape[0], -1) if whole is None else whole
        memory = Memory(self._count, rows.shape[1], tensor.dtype)
        self._count += 1
        self._store(memory, rows)
        if whole is None:
            own = self._memory.rows(memory, 1).view(1, *tensor.shape[1:])
            return InputLayout(memory, memory.width, 0, tuple(tensor.shape[1:]), own.stride()[1:])
        self._known.append((tensor, memory))
        return _layout(tensor, memory)

    def _store(self, memory: Memory, rows: torch.Tensor) -> None:
        target = self._memory.rows(memory, self.tokens)
        if self._chosen is None:
            self._copies.append((target, rows))
        else:
            torch.index_select(rows, 0, self._chosen, out=target)


def _layout(tensor: torch.Tensor, source: Memory | Output) -> InputLayout:
    shape, strides = tuple(tensor.shape[1:]), tuple(tensor.stride()[1:])
    return InputLayout(source, tensor.stride(0), int(tensor.storage_offset()), shape, strides)


def _whole_rows(tensor: torch.Tensor) -> torch.Tensor | None:
    """The rows [tokens, width] of which ``tensor`` is a part of the columns, at least half; None where it is not."""
    tokens, width = tensor.shape[0], tensor.stride(0)
    last = tensor.storage_offset() + sum(
        (size - 1) * stride for size, stride in zip(tensor.shape[1:], tensor.stride()[1:], strict=True)
    )
    of_rows = tensor.untyped_storage().nbytes() == tokens * width * tensor.itemsize
    if not of_rows or last >= width or 2 * tensor[0].numel() < width:
        return None
    return tensor.as_strided((tokens, width), (width, 1), 0)
