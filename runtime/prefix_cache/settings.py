"""How the prefix cache works."""

from __future__ import annotations

from dataclasses import dataclass

from hybridge.artifact.errors import SettingError
from hybridge.artifact.settings import checked_int
from hybridge.runtime.engines.packed_rows import EXACT, FP8, INT8

RADIX, BLOCKS, OFF = "radix", "blocks", "off"
EARLY, BRANCHES, NO_CHECKPOINTS = "early", "branches", "none"
LRU, VALUE = "lru", "value"


@dataclass(frozen=True)
class PrefixCacheSettings:
    """Prefix cache: which computed KV and states are stored for later requests with the same prefix.

    kind: "radix" keeps KV and recurrent states in a radix tree, for every model; "blocks" shares full KV blocks of
    models without recurrent layers; "off" keeps nothing. The rest is about "radix".

    cached_states: slots for states beside those of the rows; None takes half of the bytes that the rows leave, and more
    where a state is larger than the KV of a whole sequence: all of a model without attention.
    prompt_checkpoints: "early": prompts leave states where they branch off from others and before another one is known
    to share them: before the last token, and three on the way where less than half of it is known. Each takes a step of
    its own. "branches": only where they branch off, so that a shared prefix is found from the third prompt on. "none":
    only sequences that end leave states.
    decode_interval: tokens between the states of an answer, beside the one at its end; None: only that.
    policy: "value" keeps the states that save most tokens, "lru" those that were used last.
    states: "exact", or "int8" or "fp8" (experimental): the cache keeps recurrent states in 8 bits, a factor for each
    row, in a quarter of the memory that they take in float32, apart from those of the rows; what is resumed is then no
    longer exactly what its tokens would give.
    host_bytes: host memory for states and blocks that were evicted; they come back on the next hit. host_states: what
    they are there, as for ``states``; states that are in 8 bits already stay as they are.
    """

    kind: str = RADIX
    cached_states: int | None = None
    prompt_checkpoints: str = EARLY
    decode_interval: int | None = 256
    policy: str = VALUE
    states: str = EXACT
    host_bytes: int = 0
    host_states: str = EXACT

    def __post_init__(self) -> None:
        for name, known in (
            ("kind", (RADIX, BLOCKS, OFF)),
            ("prompt_checkpoints", (EARLY, BRANCHES, NO_CHECKPOINTS)),
            ("policy", (LRU, VALUE)),
            ("states", (EXACT, INT8, FP8)),
            ("host_states", (EXACT, INT8, FP8) if self.states == EXACT else (EXACT, self.states)),
        ):
            if getattr(self, name) not in known:
                raise SettingError(f"{name}: expected one of {', '.join(known)}, found {getattr(self, name)!r}")
        for name, least in (("cached_states", 0), ("decode_interval", 1), ("host_bytes", 0)):
            value = getattr(self, name)
            if value is None and name != "host_bytes":
                continue
            checked_int(name, value, least)

    @classmethod
    def of(cls, given: PrefixCacheSettings | str) -> PrefixCacheSettings:
        """Settings as they are, or those of a kind by its name."""
        return given if isinstance(given, PrefixCacheSettings) else cls(kind=given)


ENDS_ONLY = PrefixCacheSettings(prompt_checkpoints=NO_CHECKPOINTS, decode_interval=None, policy=LRU)
"""Keeps only the states at the ends of sequences: no prompt is split, and no state is copied before it is needed."""
