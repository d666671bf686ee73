"""One trace in several ways: without a cache, with the simple policy, with the default one, and the best possible."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.artifacts import DEMO_CHECKPOINT
from benchmarks.prefix_optimum import Optimum
from benchmarks.prefix_replay import VOCAB, CostEngine, Outcome, replay
from benchmarks.prefix_traces import Chats, Groups, Trace
from hybridge.exporter.export import export_checkpoint
from hybridge.exporter.options import ExportOptions
from hybridge.runtime.engines.onnxruntime.paged_engine import OnnxRuntimePagedEngine
from hybridge.runtime.engines.packed_rows import EXACT
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
    """What each way gave for one trace, made from ``seed``, with ``states`` states of cache.

    ``optimum`` is a share of the tokens.
    """

    trace: str
    seed: int
    states: int
    outcomes: Mapping[str, Outcome]
    optimum: float

    @property
    def wrong(self) -> int:
        """Answers that differ from those without a cache."""
        right = self.outcomes[WITHOUT].answers
        return sum(each.answers[i] != right[i] for each in self.outcomes.values() for i in right)

    @property
    def of_optimum(self) -> float:
        """Hit rate of the default over the best possible."""
        return self.outcomes[DEFAULT].hit_rate / self.optimum

    def to_json(self) -> dict[str, Any]:
        """Hit rates, and seconds to the first token."""
        ways = {
            name: {"hit_rate": o.hit_rate, "ttft_p50_s": o.percentile(50), "ttft_p95_s": o.percentile(95)}
            for name, o in self.outcomes.items()
        }
        return {
            "trace": self.trace,
            "seed": self.seed,
            "states": self.states,
            "optimum": self.optimum,
            "ways": ways,
        }


def compare_on_model(spec: Groups | Chats, states: int, seed: int = 0) -> Compared:
    """On the clock of the cost model."""
    trace = spec.trace(seed)
    return _compare(trace, seed, states, lambda settings: replay_on_model(trace, settings, states))


def replay_on_model(trace: Trace, settings: PrefixCacheSettings, states: int) -> Outcome:
    """On the clock of the cost model; states in 8 bits in the bytes of ``states`` exact ones."""
    engine = CostEngine(trace.at_a_time, 2048, trace.longest)
    return replay(_loop(engine, trace, settings, states), trace, lambda: engine.clock, VOCAB)


@contextmanager
def demo_engine(traces: Sequence[Trace], threads: int) -> Iterator[PagedEngine]:
    """The checkpoint that ships on ONNX Runtime, for rows and tokens of all ``traces``."""
    rows, longest = max(each.at_a_time for each in traces), max(each.longest for each in traces)
    with tempfile.TemporaryDirectory(prefix="hybridge-bench-") as name:
        folder = Path(name) / "paged"
        options = ExportOptions(layout="paged", max_batch_size=rows, max_seq_len=longest, scan=False)
        export_checkpoint(DEMO_CHECKPOINT, folder, options)
        yield OnnxRuntimePagedEngine(folder, threads=threads)


def compare_on_engine(engine: PagedEngine, trace: Trace, states: int) -> Compared:
    """On the clock of this machine; the trace is that of seed 0."""
    return _compare(trace, 0, states, lambda settings: replay_on_engine(engine, trace, settings, states)[0])


def replay_on_engine(
    engine: PagedEngine, trace: Trace, settings: PrefixCacheSettings, states: int
) -> tuple[Outcome, ServingLoop]:
    """On the clock of this machine; the loop as it is afterwards. States in 8 bits as in ``replay_on_model``."""
    loop = _loop(engine, trace, settings, states)
    return replay(loop, trace, time.perf_counter, engine.config.vocab_size), loop


def _loop(engine: PagedEngine, trace: Trace, settings: PrefixCacheSettings, states: int) -> ServingLoop:
    """Rows of the trace, the bytes of ``states`` states more, and KV for as many sequences as there would be states."""
    rows, block = trace.at_a_time, 16
    sequences = rows + states
    memory = sequences * (engine.slot_bytes + (-(-trace.longest // block) + 1) * engine.block_bytes(block))
    if settings.states != EXACT:  # of which the cache leaves one for a sequence that ends
        states = states * engine.slot_bytes // engine.packed_slot_bytes(settings.states) - 1
    cache = settings if settings.kind == OFF else replace(settings, cached_states=states)
    serving = ServingSettings(
        block, max_rows=rows, max_seq_len=trace.longest, memory_bytes=memory, swap_bytes=0, prefix_cache=cache
    )
    return ServingLoop(engine, serving, (), None)


def _compare(trace: Trace, seed: int, states: int, one: Callable[[PrefixCacheSettings], Outcome]) -> Compared:
    outcomes = {name: one(settings) for name, settings in WAYS.items()}
    whole = outcomes[WITHOUT]
    places = sorted(whole.prompts)
    prompts = [whole.prompts[i] for i in places]
    fed = [(*whole.prompts[i], *whole.answers[i][:-1]) for i in places]
    best = Optimum(prompts, fed).hits(states) / sum(map(len, prompts))
    for outcome in outcomes.values():
        outcome.prompts.clear()  # gigabytes, for long prompts
    return Compared(trace.name, seed, states, outcomes, best)
