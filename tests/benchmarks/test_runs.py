"""Every benchmark runs from end to end on small sizes and finds correct results."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from benchmarks import accelerated_generate, cpu_decode, export, hybrid_decode, opening, quantized_decode
from benchmarks.agreement import tokens_gate
from benchmarks.measure import ProcessUse
from hybridge.cli.main import run_command
from tests.benchmarks.measured import correct
from tests.benchmarks.shapes import TINY, TINY_HYBRIDS


def measured(name: str, settings: Any) -> dict[str, Any]:
    """The document; whether targets are met is not checked."""
    document = correct(name, settings)
    assert document["targets"]
    return document


def exported_once(arguments: tuple[str, ...]) -> ProcessUse:
    """Run the command in this process where its artifact is missing; the same command again changes nothing."""
    if not Path(arguments[4]).exists():
        assert run_command(arguments[2:]) == 0
    return ProcessUse(2.0, 1.0, 10**8, "")


# On push test_cpu_decode runs a benchmark from end to end, gates and document included.
@pytest.mark.slow
def test_export(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[tuple[str, ...]] = []

    def in_this_process(arguments: tuple[str, ...]) -> ProcessUse:
        commands.append(arguments)
        return exported_once(arguments)

    monkeypatch.setattr(export, "run_measured", in_this_process)
    monkeypatch.setattr(export, "imports_seconds", lambda: 1.6)
    document = measured("export", export.ExportSettings(TINY, repeats=1, folder=str(tmp_path)))
    assert [command[:3] for command in commands] == [("-m", "hybridge", "export")] * 3
    assert ["--no-scan" in command for command in commands] == [False, False, True]
    assert document["results"]["with_scan"]["wall_s"]["median"] == 2.0
    assert document["results"]["imports_s"]["median"] == 1.6
    assert 0 < document["results"]["new_bytes"] < 5e6
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_cpu_decode() -> None:
    settings = cpu_decode.DecodeSettings(
        new_tokens={cpu_decode.DEMO: 5, cpu_decode.DELTA: 5, cpu_decode.RANDOM: 4},
        prompt_tokens=3,
        prefill_tokens=33,
        threads=1,
        repeats=1,
        model=TINY,
        bandwidth_bytes=2**20,
    )
    document = measured("cpu_decode", settings)
    assert set(document["results"]) == set(cpu_decode.GOALS)
    # The last run of ONNX Runtime has no gap behind it.
    assert document["results"][cpu_decode.DEMO]["python_overhead_us"]["steps"] == 4


@pytest.mark.slow
def test_quantized_decode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantized_decode, "MODELS", {"tiny": TINY})
    monkeypatch.setattr(quantized_decode, "FEWEST_TIMED_BYTES", 0)
    monkeypatch.setattr(opening, "run_measured", lambda _: ProcessUse(2.0, 1.0, 10**8, "[0.5, 1000, 10]"))
    settings = quantized_decode.QuantizedSettings(
        models="tiny",
        trained="",
        windows=2,
        window=16,
        prompt_tokens=3,
        new_tokens=4,
        prefill_tokens=33,
        threads=1,
        repeats=1,
    )
    document = measured("quantized_decode", settings)
    assert document["settings"]["peer"] == "no folder of llama.cpp was given (--llama-cpp)"
    results = document["results"]["tiny"]
    assert set(results["decode_tokens_per_s"]) == set(quantized_decode.PEERS)
    assert results["opening"]["int4"]["seconds"]["median"] == 0.5
    quality = results["quality"]
    assert 0 < quality["int8"]["mean_kl"] < quality["int4"]["mean_kl"]
    assert quality["int4"]["weight_bytes"] < quality["int8"]["weight_bytes"]


@pytest.mark.slow
@pytest.mark.parametrize("model", TINY_HYBRIDS)
def test_hybrid_decode(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hybrid_decode, "MODELS", TINY_HYBRIDS)
    settings = hybrid_decode.HybridSettings(
        models=model, prompt_tokens=3, new_tokens=4, prefill_tokens=33, threads=1, repeats=1
    )
    document = measured("hybrid_decode", settings)
    assert set(document["results"][model]["decode_ratios"]) == {"transformers"}


@pytest.mark.slow
def test_accelerated_generate() -> None:
    settings = accelerated_generate.AcceleratedSettings(
        engines="onnxruntime", prompt_tokens=3, new_tokens=4, max_cache_len=32, threads=1, repeats=1
    )
    results = measured("accelerated_generate", settings)["results"]
    assert set(results) == set(accelerated_generate.CHECKPOINTS)
    assert all(set(result["token_ms"]) == {"transformers", "onnxruntime"} for result in results.values())


def test_new_bytes_leave_out_what_is_linked(tmp_path: Path) -> None:
    checkpoint, out = tmp_path / "checkpoint", tmp_path / "out"
    checkpoint.mkdir()
    (out / "weights").mkdir(parents=True)
    (checkpoint / "model.safetensors").write_bytes(b"1" * 100_000)
    os.link(checkpoint / "model.safetensors", out / "weights" / "model.safetensors")
    assert export.new_bytes(out, checkpoint) == 0
    (out / "copy.safetensors").write_bytes(b"1" * 100_000)
    assert 100_000 <= export.new_bytes(out, checkpoint) < 200_000


def test_different_tokens_close_the_gate() -> None:
    assert tokens_gate("x", [1, 2, 3], [1, 2, 3]).passed
    assert not tokens_gate("x", [1, 2, 4], [1, 2, 3]).passed
    assert not tokens_gate("x", [1, 2], [1, 2, 3]).passed
