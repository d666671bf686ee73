"""Settings of paged serving."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from hybridge.artifact.call_arguments import known_arguments
from hybridge.artifact.settings import bad_value, checked_bool, checked_int
from hybridge.runtime.prefix_cache.settings import BLOCKS, ENDS_ONLY, PrefixCacheSettings
from hybridge.runtime.scheduler import Fcfs, Policy
from hybridge.runtime.speculation import SpeculationSettings

GIB = 1 << 30


@known_arguments
@dataclass(frozen=True)
class ServingSettings:
    """Memory, limits and features of a paged engine.

    block_size: tokens per KV block; dense artifacts ignore it, as their blocks hold a whole sequence.
    max_rows, max_tokens, max_seq_len: maximum number of running sequences, of new tokens per step, and of tokens per
    sequence; None takes the engine's limits.
    memory_bytes: size of the pools. None: on a device, memory_utilization of what is free after its largest step; on a
    CPU enough for all rows, at most 1 GiB, plus, with a radix cache, 64 sequences of full length, at most 1 GiB. Pools
    of dense artifacts grow as they are filled, and memory_bytes bounds their prefix cache (None: 256 MiB, or 8
    sequences if these take more).
    swap_bytes: host memory for preempted sequences; beyond it, they are computed again.
    policy: the order of requests.
    prefix_cache: settings, or a kind: "radix", "blocks" or "off". None: "blocks"; for a dense artifact a radix tree of
    the ends of answers, which costs no step.
    speculation: speculative decoding; None (the default) turns it off.
    ring_rows: decode steps of at least that many rows keep what their tokens change in the recurrent states beside
    them, and write the states once every 16 tokens: faster on a GPU (engine torch); None: every step writes them.
    hidden_states: requests may ask for the hidden state of their prompt (``AsyncLLM.embed``); every step then writes
    those of its tokens. Not together with speculation.
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
    ring_rows: int | None = None
    hidden_states: bool = False

    def __post_init__(self) -> None:
        for name in ("block_size", "max_rows", "max_tokens", "max_seq_len", "memory_bytes", "ring_rows"):
            value = getattr(self, name)
            if value is not None:
                checked_int(name, value)
        checked_int("swap_bytes", self.swap_bytes, 0)
        self.cache()  # SettingError for an unknown kind
        share = self.memory_utilization
        if not isinstance(share, (int, float)) or not 0 < share <= 1:
            raise bad_value("memory_utilization", "above 0 and at most 1", share)
        if not isinstance(self.policy, Policy):
            raise bad_value("policy", "a Policy, such as Priority()", self.policy)
        if self.speculation is not None and not isinstance(self.speculation, SpeculationSettings):
            raise bad_value("speculation", "SpeculationSettings, or None", self.speculation)
        if checked_bool("hidden_states", self.hidden_states) and self.speculation is not None:
            raise bad_value("hidden_states", "False with speculation", True)

    def cache(self, pools_grow: bool = False) -> PrefixCacheSettings:
        """``prefix_cache`` as settings; ``pools_grow``: that of the engine, on which the default depends."""
        if self.prefix_cache is None:
            return ENDS_ONLY if pools_grow else PrefixCacheSettings(BLOCKS)
        return PrefixCacheSettings.of(self.prefix_cache)

    def limited(self, max_rows: int | None, max_seq_len: int | None) -> ServingSettings:
        """A copy with the given limits."""
        return replace(self, max_rows=max_rows or self.max_rows, max_seq_len=max_seq_len or self.max_seq_len)
