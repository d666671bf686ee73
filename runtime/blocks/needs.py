"""The kinds of memory that a model needs for a sequence."""

from __future__ import annotations

from dataclasses import dataclass

from hybridge.artifact.config import RuntimeConfig


@dataclass(frozen=True)
class CacheNeeds:
    """kv: blocks for attention layers. state: a slot for recurrent layers.

    window: positions that the widest attention layer sees; None when one of them sees all, since the layers share
    one block table.
    """

    kv: bool
    state: bool
    window: int | None = None

    @classmethod
    def of_model(cls, config: RuntimeConfig) -> CacheNeeds:
        """The needs of the layers of ``config``."""
        windows = [layer.sliding_window for layer in config.kv_layers]
        widest = max((window for window in windows if window), default=None)
        return cls(bool(windows), bool(config.recurrent_layers), widest if all(windows) else None)

    def first_visible(self, length: int) -> int:
        """The first position that tokens from position ``length`` on still see."""
        return 0 if self.window is None else max(0, length - self.window + 1)
