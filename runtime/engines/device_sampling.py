"""Token sampling by CUDA kernels from a step's logits, which stay on the GPU."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from hybridge.runtime.engines.packed_sampling import PackedSampling
from hybridge.runtime.sampling import SampledToken, TokenSampling
from hybridge.trt_plugins.kernels.fused.sampling import (
    MOST_LISTED,
    SamplingProblem,
    edit_type,
    result_type,
    settings_type,
)

# Edited logits per row on average; the rows of a step share the space.
_EDITS = 1024
# How an engine refers to logits on its device: a tensor, or an address.
LogitsT = TypeVar("LogitsT")


@dataclass(frozen=True)
class ChosenTokens:
    """The tokens of a step, as kernels read them: int32 at ``address`` + row * ``stride`` bytes."""

    address: int
    stride: int


class Table(ABC):
    """``here``: pinned host memory [n] uint8, with a copy on the device."""

    here: np.ndarray

    @abstractmethod
    def upload(self, begin: int = 0, end: int | None = None) -> None:
        """Enqueue the copy of bytes ``begin`` to ``end`` to the device."""

    def send(self, begin: int, end: int) -> None:
        """As ``upload``, but it may pass by work enqueued before, none of which may use the table;
        ``SamplingMemory.wait_for_tables`` comes before work that does."""
        self.upload(begin, end)


class SamplingMemory(ABC, Generic[LogitsT]):
    """Memory and kernels of one GPU, for one ``DeviceSampling``."""

    @abstractmethod
    def table(self, nbytes: int) -> Table:
        """A new table."""

    def wait_for_tables(self) -> None:
        """Let work that is enqueued from now on wait for what was sent."""

    @abstractmethod
    def mapped(self, nbytes: int) -> np.ndarray:
        """Host memory [nbytes] uint8 of zeros that kernels write to; its address is the same on the GPU."""

    @abstractmethod
    def prepared(
        self, problem: SamplingProblem, tables: Sequence[Table], results: Sequence[np.ndarray]
    ) -> Callable[[LogitsT], None]:
        """A function that enqueues the kernels of ``problem`` for logits; UnsupportedError where they cannot run it."""


def table_bytes(rows: int, vocab: int, lists: bool) -> tuple[int, int, int]:
    """Bytes of the tables: settings, edits and masks."""
    problems = SamplingProblem(rows, vocab, lists).problems
    return problems * settings_type().itemsize, rows * _EDITS * edit_type().itemsize, rows * -(-vocab // 32) * 4


def result_bytes(rows: int, vocab: int, lists: bool) -> tuple[int, int, int]:
    """Bytes of the results: one for each problem, and the tokens and logits of lists."""
    problems = SamplingProblem(rows, vocab, lists).problems
    return problems * result_type().itemsize, problems * MOST_LISTED * 4, problems * MOST_LISTED * 4


class DeviceSampling(Generic[LogitsT]):
    """Sampling for steps with logits [rows, vocab] float32 on a GPU.

    Call ``fill`` before a step and ``enqueue`` in it (which may be recorded in a CUDA graph); read ``best`` and
    ``sampled`` once the step is done.
    """

    def __init__(self, memory: SamplingMemory[LogitsT], rows: int, vocab: int, lists: bool) -> None:
        """``lists``: also list likely tokens, for log-probabilities. UnsupportedError: vocabulary too large."""
        self._rows, self.lists, self._memory = rows, lists, memory
        self._settings, self._edits, self._masks = map(memory.table, table_bytes(rows, vocab, lists))
        results = [memory.mapped(nbytes) for nbytes in result_bytes(rows, vocab, lists)]
        tokens, logits = (array.view(kind) for array, kind in zip(results[1:], ("<i4", "<f4"), strict=True))
        self._found = results[0].view(result_type()), tokens.reshape(-1, MOST_LISTED), logits.reshape(-1, MOST_LISTED)
        masks = self._masks.here.view(np.uint32).reshape(rows, -1)
        self._mask_bytes = masks.shape[1] * 4
        self._packed = PackedSampling(
            self._settings.here.view(settings_type()), self._edits.here.view(edit_type()), masks, vocab, lists
        )
        self._chosen = frozenset[int]()
        tables = self._settings, self._edits, self._masks
        self._run = memory.prepared(SamplingProblem(rows, vocab, lists), tables, results)

    @property
    def tokens(self) -> ChosenTokens:
        """The rows' tokens; -1 where the logits are not finite."""
        found = self._found[0]["token"]
        return ChosenTokens(found.ctypes.data, found.strides[0])

    @property
    def fed_tokens(self) -> list[int]:
        """``tokens``, once the step is done."""
        found: list[int] = self._found[0]["token"][: self._rows].tolist()
        return found

    @property
    def best(self) -> np.ndarray:
        """[rows] int32: the most likely token of each row, after its edits if it has any; -1 where it is not finite."""
        found: np.ndarray = self._found[0]["best"][: self._rows]
        return found

    def fill(self, samplings: Mapping[int, TokenSampling]) -> None:
        """Set how the next step's tokens are chosen, by row of its logits; the last step that was sampled with it must
        have finished."""
        self.prepare(samplings)
        self.send()

    def prepare(self, samplings: Mapping[int, TokenSampling]) -> None:
        """``fill`` without the masks, which need not be computed yet: ``send`` follows when they are."""
        try:
            self._chosen = self._packed.prepare(samplings)
        except BaseException:
            self.forget()  # it may have been written in part
            raise

    def send(self) -> None:
        """Send the device what ``prepare`` was given, except the settings."""
        packed = self._packed
        try:
            packed.set_masks()
            if packed.edited:
                self._edits.send(0, packed.edited * edit_type().itemsize)
            if packed.masked:
                # In one copy, whatever is between them.
                self._masks.send(min(packed.masked) * self._mask_bytes, (max(packed.masked) + 1) * self._mask_bytes)
            if packed.edited or packed.masked:
                self._memory.wait_for_tables()
        except BaseException:
            self.forget()  # it may have been sent in part
            raise

    def forget(self) -> None:
        """What the tables hold is unknown: the next ``fill`` writes everything."""
        self._packed.forget()

    def enqueue(self, logits: LogitsT) -> None:
        """Enqueue sampling from ``logits`` [rows, vocab] float32."""
        self._settings.upload()
        self._run(logits)

    def sampled(self, samplings: Mapping[int, TokenSampling]) -> dict[int, SampledToken]:
        """The tokens by row of ``samplings``, which ``fill`` was given, without rows that the host has to sample."""
        return self._packed.sampled({row: draw for row, draw in samplings.items() if row in self._chosen}, *self._found)
