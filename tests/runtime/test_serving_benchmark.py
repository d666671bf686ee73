"""Latencies and rates of many requests, as vllm bench serve defines them."""

from __future__ import annotations

import numpy as np
import pytest

from hybridge.artifact.errors import RequestError
from hybridge.runtime.serving_benchmark import RequestTimes, Workload, serving_report


def test_latencies_and_rates_of_known_times() -> None:
    times = [RequestTimes(0.0, (1.0, 2.0, 4.0)), RequestTimes(1.0, (2.0, 2.5, 5.0)), RequestTimes(2.0, (6.0,))]
    report = serving_report("engine", "model", "float32", Workload(requests=3, input_tokens=11), times)
    assert report.duration == 6.0 and report.requests_per_second == 0.5
    assert report.output_tokens_per_second == 7 / 6 and report.total_tokens_per_second == (7 + 33) / 6
    first, each, gaps = report.time_to_first_token, report.time_per_token, report.inter_token_latency
    assert (first.count, first.mean, first.p50) == (3, 2.0, 1.0)
    # A request of one token has no time per token.
    assert each is not None and (each.count, each.mean) == (2, 1.5)
    assert gaps is not None and (gaps.count, gaps.mean, gaps.p50) == (4, 1.5, 1.5)
    assert (report.end_to_end.mean, report.end_to_end.p50) == (4.0, 4.0)


def test_requests_of_one_token_have_no_gaps() -> None:
    report = serving_report("engine", "model", "float32", Workload(), [RequestTimes(0.0, (1.0,))])
    assert report.time_per_token is None and report.inter_token_latency is None


def test_arrivals_are_a_poisson_process_of_the_rate() -> None:
    load = Workload(requests=4000, request_rate=8.0, seed=3)
    gaps = np.diff(load.arrivals())
    # The mean and the standard deviation of exponential gaps are both 1 / rate; 5 standard errors.
    assert abs(gaps.mean() - 1 / 8) < 5 / 8 / 4000**0.5
    assert abs(gaps.std() - 1 / 8) < 5 * 2**0.5 / 8 / 4000**0.5
    assert np.array_equal(load.arrivals(), Workload(requests=4000, request_rate=8.0, seed=3).arrivals())
    assert not Workload(requests=5).arrivals().any()


def test_prompts_depend_on_the_seed_alone() -> None:
    one, other = Workload(requests=2, input_tokens=30, seed=1), Workload(requests=2, input_tokens=30, seed=2)
    assert np.array_equal(one.prompts(50), one.prompts(50)) and not np.array_equal(one.prompts(50), other.prompts(50))
    assert one.prompts(50).shape == (2, 30) and 0 <= one.prompts(50).min() <= one.prompts(50).max() < 50


def test_bad_values_are_named() -> None:
    for load, words in (
        (Workload(requests=0), "requests: expected at least 1, found 0"),
        (Workload(concurrency=0), "concurrency: expected at least 1"),
        (Workload(request_rate=float("nan")), "request_rate: expected"),
        (Workload(seed=-1), "seed: expected at least 0"),
        (Workload(input_tokens=90, output_tokens=11), "at most 100 tokens, found 101"),
    ):
        with pytest.raises(RequestError, match=words):
            load.check(100)
