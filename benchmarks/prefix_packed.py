"""What the prefix cache hits with states in 8 bits, in the bytes of exact ones that are too few.

In full with the cost model of benchmarks.prefix_cache, shortened on ONNX Runtime with the checkpoint that ships:

    python -m benchmarks.prefix_packed
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.command import run_command
from benchmarks.prefix_replay import Outcome
from benchmarks.prefix_runs import demo_engine, replay_on_engine, replay_on_model
from benchmarks.prefix_traces import ALIGNED, LONG, SHORT, UNALIGNED, Chats, Groups, Trace
from benchmarks.report import Gate, Report, Target
from hybridge.runtime.engines.packed_rows import EXACT, FP8, INT8
from hybridge.runtime.prefix_cache.settings import OFF, PrefixCacheSettings

NAME, REPEATS = "prefix_packed", 1
WITHOUT = "without"
WAYS: Mapping[str, PrefixCacheSettings] = {
    WITHOUT: PrefixCacheSettings(kind=OFF),
    EXACT: PrefixCacheSettings(),
    INT8: PrefixCacheSettings(states=INT8),
    FP8: PrefixCacheSettings(states=FP8),
}


@dataclass(frozen=True)
class PrefixPackedBenchmark:
    """``full``: traces with the exact states whose bytes the cache has, on the cost model; ``scaled`` on the CPU."""

    full: tuple[tuple[Groups | Chats, int], ...] = ((LONG, 16), (SHORT, 4), (ALIGNED, 4), (UNALIGNED, 4))
    scaled: tuple[tuple[Groups | Chats, int], ...] = ((ALIGNED.scaled(10, 4), 4), (UNALIGNED.scaled(10, 4), 4))
    threads: int = 2


def run(settings: PrefixPackedBenchmark) -> Report:
    """Replay all traces; no numbers where an answer with exact states differs from that without a cache."""
    full = [_compared(spec.trace(), states, replay_on_model, (WITHOUT, EXACT, INT8)) for spec, states in settings.full]
    scaled = _scaled(settings)
    wrong = sum(each["other_answers"][EXACT] for each in (*full, *scaled))
    gate = Gate("answers with exact states that differ from those without a cache", float(wrong), 0.0)
    targets = [
        Target(f"{place}, {each['trace']}: hits with int8 next to exact", _gain(each), "at least", 1.0, "x")
        for place, group in (("cost model", full), ("CPU", scaled))
        for each in group
    ]
    return Report(NAME, asdict(settings), (gate,), {"cost_model": full, "cpu": scaled}, tuple(targets))


def _scaled(settings: PrefixPackedBenchmark) -> list[dict[str, Any]]:
    traces = [(spec.trace(), states) for spec, states in settings.scaled]
    with demo_engine([trace for trace, _ in traces], settings.threads) as engine:

        def replayed(trace: Trace, cache: PrefixCacheSettings, states: int) -> Outcome:
            return replay_on_engine(engine, trace, cache, states)[0]

        return [_compared(trace, states, replayed, tuple(WAYS)) for trace, states in traces]


def _compared(
    trace: Trace, states: int, replayed: Callable[[Trace, PrefixCacheSettings, int], Outcome], ways: tuple[str, ...]
) -> dict[str, Any]:
    """Hit rates, latencies, and of how many requests the answer is not that without a cache."""
    outcomes = {way: replayed(trace, WAYS[way], states) for way in ways}
    right = outcomes[WITHOUT].answers
    return {
        "trace": trace.name,
        "states": states,
        "requests": len(right),
        "hit_rate": {way: each.hit_rate for way, each in outcomes.items()},
        "ttft_p95_s": {way: each.percentile(95) for way, each in outcomes.items()},
        "other_answers": {way: sum(each.answers[i] != right[i] for i in right) for way, each in outcomes.items()},
    }


def _gain(compared: dict[str, Any]) -> float:
    return compared["hit_rate"][INT8] / max(compared["hit_rate"][EXACT], 1e-9)


def main() -> int:
    """One replay of each, whatever ``--repeats`` says: hits are counts."""
    return run_command(__doc__ or "", lambda repeats: run(PrefixPackedBenchmark()), REPEATS)


if __name__ == "__main__":
    sys.exit(main())
