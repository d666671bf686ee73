"""Row lengths of a step in host memory, with their tensors."""

from __future__ import annotations

from dataclasses import dataclass

from hybridge.runtime.engines.torch.cache_blocks import CacheBlocks


@dataclass(frozen=True)
class StepLengths:
    """tokens: new tokens of the longest row, the width of the step.

    context, past: new and cached tokens of each row; not to be relied on in decoding, which is recorded once for all
        lengths up to ``bucket``.
    bucket: positions of the KV caches that the step may touch.
    blocks: where those are, for the kernels of paged attention; None where these do not reach.
    is_padded: rows may have fewer tokens than ``context`` says; how many is on the device.
    """

    tokens: int
    context: tuple[int, ...]
    past: tuple[int, ...]
    bucket: int
    blocks: CacheBlocks | None = None
    is_padded: bool = False

    @property
    def start_together(self) -> bool:
        """Whether no row has cached tokens."""
        return not any(self.past)

    @property
    def fill_the_step(self) -> bool:
        """Whether every row has as many tokens as the step is wide."""
        return not self.is_padded and all(length == self.tokens for length in self.context)
