"""The serving benchmarks run from end to end on small sizes and find correct results."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.plots import plot_latencies
from benchmarks.serving import ServingBenchmarkSettings, TorchServingSettings
from benchmarks.traffic import Served, ServedStep, host_microseconds
from tests.benchmarks.measured import correct
from tests.benchmarks.shapes import TINY

LATENCIES = {"first_token_p50", "first_token_p99", "between_tokens_p50", "between_tokens_p99", "longest_step"}


@pytest.mark.slow
def test_it_serves_in_four_ways() -> None:
    settings = ServingBenchmarkSettings(
        requests=3, batch=2, prompt=5, new_tokens=3, loads=(0.5,), alone=(70,), repeats=1
    )
    document = correct("serving", settings)
    assert len(document["results"]["tokens_per_second"]) == 4
    assert all(each["steps"] and each["median"] > 0 for each in document["results"]["python_us"].values())
    first_token = document["results"]["first_token_ms"]["70"]
    # The same prompt again computes one token of 70.
    assert first_token["same prompt again"]["median"] < first_token["new prompt"]["median"]
    assert set(document["results"]["latency_ms"]["0.5"]) == LATENCIES


@pytest.mark.slow
def test_a_small_model_is_served_by_torch(tmp_path: Path) -> None:
    settings = TorchServingSettings(
        device="cpu",
        work=str(tmp_path),
        batch=2,
        prompt=5,
        new_tokens=6,
        requests=6,
        pressure=50.0,
        alone=1,
        loads=(0.5,),
        latency_requests=3,
        max_tokens=16,
        gate_tokens=5,
        gate_steps=2,
        repeats=1,
        model=TINY,
    )
    document = correct("serving_torch", settings)
    assert [gate["value"] < 1e-2 for gate in document["gates"]] == [True, True]
    results = document["results"]
    assert set(results["latency_ms"]["0.5"]) == LATENCIES and "states" in results["memory"]
    assert {target["unit"] for target in document["targets"]} == {"x", "us"}


def test_rates_and_latencies_come_from_the_marks() -> None:
    served = Served([0.0, 1.0, 4.0], [[2.0, 3.0, 5.0], [1.5, 3.5], [6.0]])
    assert served.first_token.tolist() == [2.0, 0.5, 2.0]
    assert served.between_tokens.tolist() == [1.0, 2.0, 2.0]
    # 2, 3, 3.5, 5 and 6 lie in the last three quarters of the time up to 6.
    assert served.rate(settled=0.25) == 5 / 4.5
    assert served.latencies_ms()["first_token_p50"] == 2000


def test_the_host_is_what_the_device_does_not_take_of_full_decode_steps() -> None:
    full, prompt = ServedStep(0.003, 0.001, 0.002, 4, 4), ServedStep(0.009, 0.002, 0.007, 4, 9)
    assert host_microseconds(Served(steps=[prompt, full]), 4) == pytest.approx([1000.0])
    with pytest.raises(RuntimeError, match="expected steps in which 8 rows decode"):
        host_microseconds(Served(steps=[prompt, full]), 8)


def test_the_same_latencies_give_the_same_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="needs the plot extra (matplotlib)")
    latencies = {load: dict.fromkeys(LATENCIES, float(load)) for load in ("0.5", "0.25")}
    for name in ("a.svg", "b.svg"):
        plot_latencies(latencies, tmp_path / name, "a CPU")
    first, second = ((tmp_path / name).read_bytes() for name in ("a.svg", "b.svg"))
    assert first == second and b"<path" in first
