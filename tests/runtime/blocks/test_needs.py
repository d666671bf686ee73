"""What memory a sequence of a model needs, by the model's layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from hybridge.artifact.config import KVLayerConfig
from hybridge.runtime.blocks import CacheNeeds
from tests.runtime.toy_engine import HYBRID, PURE_ATTENTION, PURE_MAMBA
from tests.runtime.toy_paged_engine import paged_config


@pytest.mark.parametrize(("windows", "widest"), [([None], None), ([6], 6), ([6, 9], 9), ([6, None], None)], ids=str)
def test_the_widest_window_of_all_layers_counts(windows: Sequence[int | None], widest: int | None) -> None:
    """A layer that sees all positions needs every block, whatever the others see."""
    layers = tuple(KVLayerConfig(1, 2, window) for window in windows)
    assert CacheNeeds.of_model(replace(paged_config(PURE_ATTENTION), kv_layers=layers)) == CacheNeeds(
        kv=True, state=False, window=widest
    )


def test_kinds_of_layers() -> None:
    assert CacheNeeds.of_model(paged_config(HYBRID)) == CacheNeeds(kv=True, state=True)
    assert CacheNeeds.of_model(paged_config(PURE_MAMBA)) == CacheNeeds(kv=False, state=True)
