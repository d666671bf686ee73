"""Positions are counted from the tokens of a row; other given positions would lead to a wrong rotary embedding."""

from __future__ import annotations

import numpy as np
import torch

from hybridge.artifact.errors import RequestError
from hybridge.transformers_host.columns import Columns


def check_positions(position_ids: torch.Tensor | None, columns: Columns, tokens: np.ndarray | None, new: int) -> None:
    """RequestError unless ``position_ids`` [.., rows or 1, new] count the tokens of each row, padding left out."""
    if position_ids is None:
        return
    found = position_ids.detach().cpu().numpy()
    if tokens is None and not columns.padded:
        expected = np.arange(columns.count, columns.count + new)
        agrees = found.shape[-1] == new and bool((found == expected).all())
    else:
        before = columns.tokens.sum(axis=1, keepdims=True)
        real = np.ones((len(before), new), bool) if tokens is None else tokens
        agrees = found.shape[-1] == new and bool(((found == before + real.cumsum(axis=1) - 1) | ~real).all())
    if not agrees:
        raise RequestError(
            "position_ids: expected the number of tokens before each token, padding left out, found others: leave "
            "position_ids to generate()"
        )
