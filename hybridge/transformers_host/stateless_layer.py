"""The cache layer of a decoder layer without a state, by the name that the installed transformers has for it."""

from __future__ import annotations

from typing import Any

from transformers import cache_utils


def stateless_layer() -> Any:
    """A layer that stays empty, which transformers before 5.21 has no class for."""
    named = getattr(cache_utils, "DummyLayer", None)
    return _EmptyLayer() if named is None else named()


class _EmptyLayer(cache_utils.LinearAttentionLayer):  # type: ignore[misc]
    """A recurrent layer that is never updated, so it needs no rollback."""

    def crop(self, tokens_to_remove: int) -> None:
        pass
