"""Interfaces of what computes a text model: a backend, and the states of one cache's rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import numpy as np
import torch

from hybridge.artifact.errors import RequestError
from hybridge.transformers_host.columns import Columns

# One layer's state as transformers names and shapes it: "keys" and "values" [rows, kv_heads, columns, head_dim], or
# "conv" [rows, conv_dim, conv_kernel] and "recurrent" [rows, heads, ...]. Empty for a layer without state.
LayerState = Mapping[str, torch.Tensor]


class TextRows(ABC):
    """The states of one cache: all rows and all layers, ``columns.count`` columns of tokens and padding."""

    columns: Columns
    batch: int

    @abstractmethod
    def step(self, input_ids: torch.Tensor, tokens: np.ndarray | None) -> torch.Tensor:
        """Feed ``input_ids`` [rows, q], of which ``tokens`` [rows, q] bool are not padding (None: all of them).

        Returns the hidden states [rows, q, hidden] after the final norm, float32 on the CPU; those of padding are
        undefined. RequestError, before anything is computed, when a row would not fit.
        """

    @abstractmethod
    def select(self, rows: Sequence[int]) -> None:
        """Keep only ``rows``, in the order given, each as often as it is given."""

    @abstractmethod
    def crop(self, columns: int) -> None:
        """Forget the last ``columns`` columns; RequestError where the states cannot go back."""

    @abstractmethod
    def record(self) -> None:
        """Remember from now on what ``crop`` needs."""

    @abstractmethod
    def clear(self) -> None:
        """Forget all columns."""

    @abstractmethod
    def read_layer(self, index: int) -> LayerState:
        """Copies of the state of the absolute layer ``index``."""

    @abstractmethod
    def write_layers(self, layers: Sequence[LayerState], tokens: np.ndarray) -> None:
        """Replace everything by the states of another cache, in whose columns ``tokens`` [rows, columns] are."""

    def release(self) -> None:  # noqa: B027 (rows without resources need no override)
        """Give the memory back to the backend; calling it twice is allowed."""


class TextBackend(ABC):
    """A text model made runnable. ``layer_types``: the kind of each absolute layer, as in config.json."""

    layer_types: tuple[str, ...]
    max_batch_size: int
    max_cache_len: int

    @abstractmethod
    def rows(self, batch: int, tokens: int) -> TextRows:
        """Empty states of ``batch`` rows that are about to get up to ``tokens`` tokens.

        RequestError when there are more rows or tokens than the backend holds.
        """

    @abstractmethod
    def close(self) -> None:
        """Release everything; calling it twice is allowed."""

    def check_room(self, batch: int, tokens: int) -> None:
        """RequestError unless ``batch`` rows of ``tokens`` tokens fit."""
        if batch > self.max_batch_size:
            raise RequestError(
                f"expected at most {self.max_batch_size} rows (prompts times beams or returned sequences), found "
                f"{batch}: send fewer at once, or accelerate with a larger max_batch_size"
            )
        if tokens > self.max_cache_len:
            raise RequestError(
                f"expected at most {self.max_cache_len} tokens in the cache, found {tokens}: shorten the prompt, ask "
                "for fewer new tokens, or accelerate with a larger max_cache_len"
            )
