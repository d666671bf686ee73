"""The cache layer of a decoder layer without a state, by the name that the installed transformers has for it."""

from __future__ import annotations

from typing import Any

from transformers import cache_utils


def stateless_layer() -> Any:
    """A layer that stays empty; before transformers 5.21 that is a recurrent one which is never updated."""
    kind = getattr(cache_utils, "DummyLayer", None) or cache_utils.LinearAttentionLayer
    return kind()
