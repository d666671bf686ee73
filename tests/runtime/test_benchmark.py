"""The benchmark measures what its report says."""

import dataclasses
import json

import numpy as np
import pytest

from hybridge.artifact.errors import RequestError
from hybridge.runtime import benchmark
from hybridge.runtime.benchmark import Distribution, run_benchmark
from tests.runtime.toy_engine import ToyEngine, toy_config


class Clock:
    """Time that passes only in steps: ``cost`` seconds per token of the longest row."""

    def __init__(self, engine: ToyEngine, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        step = engine.step

        def timed_step(inputs, states):  # type: ignore[no-untyped-def]
            self.now += 0.5 * inputs.input_ids.shape[1]
            return step(inputs, states)

        monkeypatch.setattr(engine, "step", timed_step)
        monkeypatch.setattr(benchmark.time, "perf_counter", lambda: self.now)


def test_times_and_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = ToyEngine(toy_config())
    Clock(engine, monkeypatch)
    report = run_benchmark(engine, (4, 9), (3,), context_tokens=5, rows=2, repetitions=3, warmup=2)
    first, second = report.prefill
    assert (first.name, second.name) == ("pp4", "pp9")
    assert first.time_to_first_token == Distribution(3, 2.0, 2.0, 2.0, 2.0)
    assert first.tokens_per_second == 2 * 4 / 2.0
    assert second.time_to_first_token.p50 == 4.5
    (decode,) = report.decode
    assert (decode.name, decode.context_tokens, decode.time_per_token.count) == ("tg3", 5, 9)
    assert decode.time_per_token.p99 == 0.5 and decode.tokens_per_second == 2 / 0.5 and decode.engine_share == 1.0
    # Warm-up runs are made and not counted: 5 runs of each prefill, 5 x (prefill + 3 steps) of decoding.
    assert engine.steps == [(2, 4)] * 5 + [(2, 9)] * 5 + ([(2, 5)] + [(2, 1)] * 3) * 5


def test_percentiles_are_those_of_numpy() -> None:
    values = np.random.default_rng(0).random(101)
    result = Distribution.of(values)
    np.testing.assert_allclose([result.p50, result.p95, result.p99], np.sort(values)[[50, 95, 99]])
    assert result.count == 101 and np.isclose(result.mean, values.mean())


def test_the_report_is_frozen_and_json() -> None:
    report = run_benchmark(ToyEngine(toy_config()), (2,), (1,), repetitions=1, warmup=0)
    data = json.loads(json.dumps(report.to_json()))
    assert data["engine"] == "toy" and data["dtype"] == "float32"
    assert data["prefill"][0]["time_to_first_token"]["count"] == 1
    assert data["decode"][0]["time_per_token"]["p95"] > 0
    with pytest.raises(dataclasses.FrozenInstanceError):
        report.engine = "x"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"prompt_tokens": (97,)}, "the longest run: expected from 1 to 96, found 97"),
        ({"new_tokens": (96,)}, "the longest run: expected from 1 to 96, found 97"),
        ({"prompt_tokens": (0,)}, "prompt_tokens: expected at least 1, found 0"),
        ({"rows": 5}, "rows: expected from 1 to 4, found 5"),
        ({"repetitions": 0}, "repetitions: expected at least 1"),
        ({"warmup": -1}, "warmup: expected at least 0"),
    ],
)
def test_what_the_engine_cannot_hold_is_refused(arguments: dict[str, object], message: str) -> None:
    engine = ToyEngine(toy_config())
    with pytest.raises(RequestError, match=message):
        run_benchmark(engine, **{"prompt_tokens": (1,), "new_tokens": (1,), **arguments})  # type: ignore[arg-type]
    assert engine.steps == []


def test_progress_counts_every_run() -> None:
    class Counter:
        total: int | None = 0
        done = 0

        def start(self, stage: str, total: int | None = None, unit: str = "") -> None:
            self.total = total

        def advance(self, amount: int = 1) -> None:
            self.done += amount

        def finish(self) -> None:
            assert self.done == self.total

    counter = Counter()
    run_benchmark(ToyEngine(toy_config()), (2, 3), (1,), repetitions=2, warmup=1, progress=counter)
    assert counter.done == 9
