"""Settings of the prefix cache."""

from __future__ import annotations

from dataclasses import dataclass

from hybridge.artifact.call_arguments import known_arguments
from hybridge.artifact.errors import SettingError
from hybridge.artifact.settings import checked_int
from hybridge.runtime.engines.packed_rows import EXACT, FP8, INT8

RADIX, BLOCKS, OFF = "radix", "blocks", "off"
EARLY, BRANCHES, NO_CHECKPOINTS = "early", "branches", "none"
LRU, VALUE = "lru", "value"


@known_arguments
@dataclass(frozen=True)
class PrefixCacheSettings:
    """Prefix cache: which computed KV and states are stored for later requests with the same prefix.

    kind: "radix" keeps KV and recurrent states in a radix tree, for every model; "blocks" shares full KV blocks of
    models without recurrent layers; "off" stores nothing. The other settings apply to "radix".

    cached_states: state slots besides those of the rows. None: half of the bytes left by the rows, more where a state
    is larger than the KV of a whole sequence, and all of them for a model without attention.
    prompt_checkpoints: "early": states are stored where prompts branch and also where later prompts may: before the
    last token, and at three points of a prompt of which less than half was cached. Each takes an extra step, unless the
    engine copies states inside of a step (onnxruntime with its library of CPU kernels, for exact states).
    "branches": only where prompts branch, so that a shared prefix is reused from the third prompt on. "none": only at
    the ends of sequences.
    decode_interval: tokens between the stored states of an answer; None: only at its end.
    policy: "value" keeps the states that save most tokens, "lru" the most recently used ones.
    states: "exact", or "int8" or "fp8" (experimental): cached recurrent states in 8 bits with a factor for each row, in
    a quarter of their memory in float32; answers may then differ from those without a cache.
    host_bytes: host memory for evicted states and blocks, which return on the next hit. host_states: their format
    there, as for ``states``; states that are in 8 bits already stay unchanged.
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
"""Stores only the states at the ends of sequences: prompts are not split, and states are copied only when used."""
