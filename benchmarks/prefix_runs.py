"""One trace in several ways: without a cache, with the policy LRU, with the default one, and the offline optimum."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.artifacts import DEMO_CHECKPOINT, exported, scratch_folder
from benchmarks.prefix_optimum import Optimum
from benchmarks.prefix_replay import VOCAB, CostEngine, Outcome, replay
from benchmarks.prefix_traces import Trace
from hybridge.runtime.engines.onnxruntime.paged_engine import OnnxRuntimePagedEngine
from hybridge.runtime.engines.paged import PagedEngine
from hybridge.runtime.prefix_cache.settings import LRU, OFF, PrefixCacheSettings
from hybridge.runtime.serving.loop import ServingLoop
from hybridge.runtime.serving.settings import ServingSettings

WITHOUT, SIMPLE, DEFAULT = "without", "lru", "value"
WAYS: Mapping[str, PrefixCacheSettings] = {
    WITHOUT: PrefixCacheSettings(kind=OFF),
    SIMPLE: PrefixCacheSettings(policy=LRU),
    DEFAULT: PrefixCacheSettings(),
}


@dataclass(frozen=True)
class Compared:
    """The outcome of each way for one trace, made from ``seed``, with ``states`` states of cache.

    ``optimum`` is a share of the tokens.
    """

    trace: str
    seed: int
    states: int
    outcomes: Mapping[str, Outcome]
    optimum: float

    def wrong(self) -> int:
        """Answers that differ from those without a cache."""
        right = self.outcomes[WITHOUT].answers
        return sum(outcome.answers[i] != right[i] for outcome in self.outcomes.values() for i in right)

    def ratio(self, way: str, other: str) -> float:
        """The hit rate of ``way`` over that of ``other``."""
        return self.outcomes[way].hit_rate / max(self.outcomes[other].hit_rate, 1e-9)

    @property
    def of_optimum(self) -> float:
        """The hit rate of the default over the offline optimum."""
        return self.outcomes[DEFAULT].hit_rate / self.optimum

    def to_json(self) -> dict[str, Any]:
        """Hit rates and seconds to the first token."""
        ways = {
            name: {
                "hit_rate": outcome.hit_rate,
                "ttft_p50_s": outcome.percentile(50),
                "ttft_p95_s": outcome.percentile(95),
            }
            for name, outcome in self.outcomes.items()
        }
        described = {"trace": self.trace, "seed": self.seed, "states": self.states}
        return {**described, "ways": ways, "optimum": self.optimum}


def compared(trace: Trace, seed: int, states: int, engine: PagedEngine | None = None) -> Compared:
    """Each of WAYS and the offline optimum, on the clock of this machine; without ``engine`` on that of the model."""
    outcomes = {way: _replayed(trace, settings, states, engine) for way, settings in WAYS.items()}
    whole = outcomes[WITHOUT]
    places = sorted(whole.prompts)
    prompts = [whole.prompts[i] for i in places]
    fed = [(*whole.prompts[i], *whole.answers[i][:-1]) for i in places]
    best = Optimum(prompts, fed).hits(states) / sum(map(len, prompts))
    for outcome in outcomes.values():
        outcome.prompts.clear()  # gigabytes, for long prompts
    return Compared(trace.name, seed, states, outcomes, best)


def _replayed(trace: Trace, settings: PrefixCacheSettings, states: int, engine: PagedEngine | None) -> Outcome:
    if engine is None:
        return replay_on_model(trace, settings, states)
    return replay(_loop(engine, trace, settings, states), trace, time.perf_counter, engine.config.vocab_size)


def replay_on_model(trace: Trace, settings: PrefixCacheSettings, states: int) -> Outcome:
    """On the clock of the cost model."""
    engine = CostEngine(trace.at_a_time, 2048, trace.longest)
    return replay(_loop(engine, trace, settings, states), trace, lambda: engine.clock, VOCAB)


@contextmanager
def demo_engine(traces: Sequence[Trace], threads: int) -> Iterator[PagedEngine]:
    """The checkpoint that ships on ONNX Runtime, for rows and tokens of all ``traces``."""
    rows, longest = max(each.at_a_time for each in traces), max(each.longest for each in traces)
    options = {"layout": "paged", "max_batch_size": rows, "max_seq_len": longest}
    with scratch_folder() as folder:
        artifact = exported(DEMO_CHECKPOINT, folder / "paged", **options)
        with closing(OnnxRuntimePagedEngine(artifact, threads=threads)) as engine:
            yield engine


def _loop(engine: PagedEngine, trace: Trace, settings: PrefixCacheSettings, states: int) -> ServingLoop:
    """Rows of the trace, the bytes of ``states`` states more, and KV for as many sequences as there would be states."""
    rows, block = trace.at_a_time, 16
    sequences = rows + states
    memory = sequences * (engine.slot_bytes + (-(-trace.longest // block) + 1) * engine.block_bytes(block))
    cache = settings if settings.kind == OFF else replace(settings, cached_states=states)
    serving = ServingSettings(
        block, max_rows=rows, max_seq_len=trace.longest, memory_bytes=memory, swap_bytes=0, prefix_cache=cache
    )
    return ServingLoop(engine, serving, (), None)
