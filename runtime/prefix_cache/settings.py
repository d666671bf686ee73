"""How the prefix cache works."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from hybridge.artifact.errors import EngineError
from hybridge.runtime.engines.packed_rows import EXACT, FP8, INT8

RADIX, BLOCKS, OFF = "radix", "blocks", "off"
LRU, VALUE = "lru", "value"
_MAY_BE_NONE = ("cached_states", "grid", "decode_interval", "path_states")


@dataclass(frozen=True)
class PrefixCacheSettings:
    """What is kept of the tokens that were computed, for requests that begin alike.

    kind: "radix" keeps KV and recurrent states in a radix tree, for every model; "blocks" shares full KV blocks of
    models without recurrent layers; "off" keeps nothing. The rest is about "radix".

    cached_states: slots for states beside those of the rows; None takes half of the bytes that the rows leave, and more
    where a state is larger than the KV of a whole sequence: all of a model without attention.
    branch_points, prompt_end: whether a prompt stops where it leaves a known one, and before its last token, for a
    state. spread: so many states, evenly, on the way of a prompt of which less than half is known, or fewer at the
    lengths at which other prompts parted. grid: also after every so many tokens; None: not. chunks: whether the state
    after the latest chunk of an unfinished prompt can be resumed. decode_interval: tokens between the states of an
    answer, beside the one at its end. least_gain: tokens that a state must save to be taken.
    policy: "value" keeps what saves most work for its bytes, "lru" what was used last. alpha: weight of the work
    against recency; None tunes it by what would have hit most of the latest ``window`` requests.
    path_states: most states on the way to one leaf; None: no limit.
    states: "exact", or "int8" or "fp8" (experimental): the cache keeps recurrent states in 8 bits, a factor for each
    row, in a quarter of the memory that they take in float32, apart from those of the rows; what is resumed is then no
    longer exactly what its tokens would give.
    host_bytes: host memory for states and blocks that had to give way; they come back on the next hit. host_states:
    what they are there, as for ``states``; states that are in 8 bits already stay as they are.
    """

    kind: str = RADIX
    cached_states: int | None = None
    branch_points: bool = True
    prompt_end: bool = True
    spread: int = 3
    grid: int | None = None
    chunks: bool = True
    decode_interval: int | None = 256
    least_gain: int = 1
    policy: str = VALUE
    alpha: float | None = None
    window: int = 64
    path_states: int | None = 8
    states: str = EXACT
    host_bytes: int = 0
    host_states: str = EXACT

    def __post_init__(self) -> None:
        for name, known in (
            ("kind", (RADIX, BLOCKS, OFF)),
            ("policy", (LRU, VALUE)),
            ("states", (EXACT, INT8, FP8)),
            ("host_states", (EXACT, INT8, FP8) if self.states == EXACT else (EXACT, self.states)),
        ):
            if getattr(self, name) not in known:
                raise EngineError(f"{name}: expected one of {', '.join(known)}, found {getattr(self, name)!r}")
        for name, least in (
            ("cached_states", 0),
            ("spread", 0),
            ("grid", 1),
            ("decode_interval", 1),
            ("least_gain", 1),
            ("window", 1),
            ("path_states", 1),
            ("host_bytes", 0),
        ):
            value = getattr(self, name)
            if value is None and name in _MAY_BE_NONE:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise EngineError(f"{name}: expected an integer of at least {least}, found {value!r}")
        for name in ("branch_points", "prompt_end", "chunks"):
            if not isinstance(getattr(self, name), bool):
                raise EngineError(f"{name}: expected true or false, found {getattr(self, name)!r}")
        alpha = self.alpha
        if alpha is not None and (type(alpha) not in (int, float) or not 0 <= alpha < inf):
            raise EngineError(f"alpha: expected a number of at least 0, found {alpha!r}")

    @classmethod
    def of(cls, given: PrefixCacheSettings | str) -> PrefixCacheSettings:
        """Settings as they are, or those of a kind by its name."""
        return given if isinstance(given, PrefixCacheSettings) else cls(kind=given)


ENDS_ONLY = PrefixCacheSettings(
    branch_points=False, prompt_end=False, spread=0, chunks=False, decode_interval=None, policy=LRU
)
"""Keeps the states at the ends of answers alone: no prompt is cut, and no state is copied before it is needed."""
