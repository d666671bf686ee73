"""Which of the new tokens are not padding, from whatever mask transformers hands to a text model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from hybridge.artifact.errors import RequestError

_REMEDY = "pass a 2-D attention_mask over all tokens, cached and new, or none"


def tokens_from_mask(mask: Any, rows: int, past: int, new: int) -> np.ndarray | None:
    """[rows, past + new] bool, True for a token and False for padding; None when there is no padding.

    ``mask``: None, [rows, past + new], [rows, 1, new, at least past + new] (bool, or floats that are added to scores),
    or one of them per kind of layer. RequestError for a mask that is more than causal and padding.
    """
    if isinstance(mask, Mapping):
        mask = next(
            (mask[kind] for kind in ("full_attention", "sliding_attention") if mask.get(kind) is not None), None
        )
    if mask is None:
        return None
    found = mask.detach().cpu()
    if found.ndim == 2 and found.shape == (rows, past + new):
        tokens = (found != 0).numpy()
    elif found.ndim == 4 and found.shape[0] in (1, rows) and found.shape[2] == new and found.shape[3] >= past + new:
        tokens = _tokens_from_scores_mask(found, rows, past, new)
    else:
        raise RequestError(f"attention_mask: expected [{rows}, {past + new}], found {list(found.shape)}: {_REMEDY}")
    return None if tokens.all() else tokens


def _tokens_from_scores_mask(mask: torch.Tensor, rows: int, past: int, new: int) -> np.ndarray:
    visible = (mask if mask.dtype == torch.bool else mask >= 0)[:, 0].expand(rows, -1, -1).numpy()
    tokens = visible[:, -1, : past + new]
    causal = np.tri(new, past + new, past, dtype=bool)
    expected = causal & tokens[:, None]
    real = tokens[:, past:, None]
    # Rows of padding may attend to anything: their results are not read.
    if ((visible[:, :, : past + new] != expected) & real).any() or visible[:, :, past + new :].any():
        raise RequestError(f"attention_mask: expected a causal mask with padding, found another pattern: {_REMEDY}")
    return tokens
