"""How a paged engine serves."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from hybridge.artifact.errors import EngineError
from hybridge.runtime.prefix_cache.settings import BLOCKS, ENDS_ONLY, PrefixCacheSettings
from hybridge.runtime.scheduler import Fcfs, Policy
from hybridge.runtime.speculation import SpeculationSettings

GIB = 1 << 30


@dataclass(frozen=True)
class ServingSettings:
    """block_size: tokens of a KV block. max_rows, max_tokens, max_seq_len: sequences that run at a time, new tokens of
    one step and tokens of one sequence; None takes the engine's limits.

    memory_bytes: of the pools; None takes memory_utilization of what the device has free after its largest step, and
    on a CPU what all rows can use, at most 1 GiB, and with a prefix tree what 64 sequences of full length take beside
    that, at most 1 GiB too. Pools of dense artifacts take memory only as they are filled, and memory_bytes bounds what
    their prefix cache holds: None is 256 MiB, or 8 sequences where these take more. swap_bytes: host memory for
    sequences that lost their place; beyond, they are computed again. policy: the order of requests. prefix_cache: what
    is kept for requests that begin alike, as settings or their kind: "radix", "blocks" or "off"; None is "blocks", and
    for a dense artifact a radix tree of the ends of answers, which costs no step. speculation: tokens that are tried
    before they are certain; None, the default, tries none. block_size has no effect on dense artifacts, whose blocks
    hold a whole sequence.
    """

    block_size: int = 16
    max_rows: int | None = None
    max_tokens: int | None = None
    max_seq_len: int | None = None
    memory_bytes: int | None = None
    memory_utilization: float = 0.9
    swap_bytes: int = GIB // 4
    policy: Policy = field(default_factory=Fcfs)
    prefix_cache: PrefixCacheSettings | str | None = None
    speculation: SpeculationSettings | None = None

    def __post_init__(self) -> None:
        for name in ("block_size", "max_rows", "max_tokens", "max_seq_len", "memory_bytes"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise EngineError(f"{name}: expected an integer of at least 1, found {value!r}")
        self.cache()  # EngineError for a kind that is none
        if not 0 < self.memory_utilization <= 1:
            raise EngineError(f"memory_utilization: expected above 0 and at most 1, found {self.memory_utilization!r}")

    def cache(self, whole_sequences: bool = False) -> PrefixCacheSettings:
        """``prefix_cache`` as settings; ``whole_sequences``: for an engine whose blocks are whole sequences."""
        if self.prefix_cache is None:
            return ENDS_ONLY if whole_sequences else PrefixCacheSettings(BLOCKS)
        return PrefixCacheSettings.of(self.prefix_cache)

    def limited(self, max_rows: int | None, max_seq_len: int | None) -> ServingSettings:
        """These settings with other limits where they are given."""
        return replace(self, max_rows=max_rows or self.max_rows, max_seq_len=max_seq_len or self.max_seq_len)
