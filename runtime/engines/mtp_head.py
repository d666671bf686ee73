"""The interface of a multi-token prediction head."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import numpy as np

from runtime.engines.hidden_rows import HiddenRows
from runtime.engines.paged import PackedInputs, PagedEngine


@dataclass(frozen=True, eq=False, kw_only=True)
class HeadInputs(PackedInputs):
    """A step of a head: position i of a row has token i + 1 of the sequence. Every row's last token has logits.

    hidden_places [tokens] int64  place of the hidden states of token i among those that the head reads
    is_own [tokens] int32         0: they are the model's; 1: the head's own, of the position before
    own_places [rows] int64       where what the head makes of the row's last token goes, before its norm
    """

    hidden_places: np.ndarray
    is_own: np.ndarray
    own_places: np.ndarray


class MtpHead(PagedEngine):
    """A head with pools of its own."""

    @abstractmethod
    def read_from(self, rows: HiddenRows) -> None:
        """Find the hidden states of all later steps in ``rows``, those of the model's engine, and put its own there."""

    @abstractmethod
    def run(self, inputs: HeadInputs) -> list[int | None]:
        """The most likely token after each row, None where it is not finite. Errors as of ``step``."""
