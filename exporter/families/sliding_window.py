"""Which layers of a config have a sliding window."""

from __future__ import annotations

from hybridge.exporter.families.common_fields import FULL
from hybridge.exporter.families.hf_config import HfConfig

SLIDING = "sliding_attention"


def layer_windows(config: HfConfig, count: int, absent_kinds: list[str], window: int | None) -> list[int | None]:
    """The sliding window of each of ``count`` layers, None for full attention.

    ``layer_types`` says which layers have the ``window``, ``absent_kinds`` where the config does not have it.
    """
    kinds = config.array("layer_types", None)
    if kinds is None:
        kinds = absent_kinds
    if len(kinds) != count or not all(kind in (FULL, SLIDING) for kind in kinds):
        raise config.fail("layer_types", f"a list of num_hidden_layers {count} entries, {FULL} or {SLIDING}")
    if window is None and SLIDING in kinds:
        raise config.fail("sliding_window", f"a window with use_sliding_window, because layer_types has {SLIDING}")
    return [window if kind == SLIDING else None for kind in kinds]


def switched_window(config: HfConfig, absent: int | None = None) -> int | None:
    """``sliding_window``, or ``absent`` where the config does not have it; None without ``use_sliding_window``."""
    used = config.flag("use_sliding_window", default=False)
    # The field is checked even where use_sliding_window switches it off.
    window: int | None = config.positive("sliding_window", default=absent, null=None)
    return window if used else None


def upper_windows(config: HfConfig, absent_window: int) -> list[int | None]:
    """As ``layer_windows``; without ``layer_types`` the layers from ``max_window_layers`` have the window (Qwen)."""
    count, window = config.layer_count(), switched_window(config, absent_window)
    first = config.integer("max_window_layers", 28)
    kinds = [SLIDING if window and index >= first else FULL for index in range(count)]
    return layer_windows(config, count, kinds, window)
