#!/usr/bin/env python3
"""Builds, runs, verifies and measures a TensorRT engine on this machine's GPU, and writes one JSON report.

    python tools/hw_check.py [ARTIFACT] [--report FILE.json]

Without ARTIFACT, the checkpoint that ships is exported first (extra "export"). tools/README.md says more.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hardware.agreement import compare_engines
from hardware.machine import machine_document

import hybridge
from hybridge.artifact.errors import EngineError, HybridgeError
from hybridge.artifact.version import __version__
from hybridge.runtime.benchmark import run_benchmark
from hybridge.runtime.engines import create_dense_engine

ROOT = Path(__file__).resolve().parents[1]
CHECKPOINT = ROOT / "examples" / "checkpoints" / "tiny-nemotron-h"
PROMPT, NEW_TOKENS = "The President of the United States", 48
BENCHMARK_TOKENS, REPETITIONS = 128, 5
REFERENCE, CHECKED = "onnxruntime", "tensorrt"
PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"
NEEDED_BY_ALL = ("gpu", "export")
# What is built and checked: plugins that update states in place, plugins with two buffers a state, two plugins where a
# mixer would be one, native layers.
ENGINES = {
    "plugins": {"plugins": "on", "plugin_states": "aliased"},
    "plugins-separate": {"plugins": "on", "plugin_states": "separate"},
    "plugins-two-ops": {"plugins": "on", "plugin_states": "aliased", "plugin_mixers": "separate"},
    "native": {"plugins": "off"},
}


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code: 0 when every step passed, 1 when one failed, 2 for bad usage."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("artifact", nargs="?", type=Path, help="an exported artifact (default: export what ships)")
    parser.add_argument("--report", type=Path, default=Path("hw-check.json"), help="the report to write")
    parser.add_argument("--engine", action="append", choices=list(ENGINES), help="only this one; may be repeated")
    parser.add_argument("--max-batch", type=int, help="rows of the engines (default: the preset's)")
    parser.add_argument("--max-seq-len", type=int, help="tokens of a row (default: the preset's)")
    options = parser.parse_args(arguments)
    check = HardwareCheck(options.max_batch, options.max_seq_len)
    try:
        check.run(options.artifact, options.engine or list(ENGINES))
    finally:
        options.report.write_text(json.dumps(check.document(), indent=2) + "\n", encoding="utf-8")
        print(f"wrote {options.report}", file=sys.stderr)
    return 0 if check.passed else 1


class HardwareCheck:
    """The steps of one check, in order. A step that fails is recorded; what needs it is skipped."""

    def __init__(self, max_batch: int | None, max_seq_len: int | None) -> None:
        self._max_batch, self._max_seq_len = max_batch, max_seq_len
        self._machine = machine_document()
        self.steps: list[dict[str, Any]] = []

    @property
    def passed(self) -> bool:
        return bool(self.steps) and all(step["status"] == PASSED for step in self.steps)

    def document(self) -> dict[str, Any]:
        """The report: machine, verdict, steps."""
        return {
            "hw_check": 1,
            "hybridge": __version__,
            "machine": self._machine,
            "passed": self.passed,
            "steps": self.steps,
        }

    def run(self, artifact: Path | None, engines: Sequence[str]) -> None:
        """Export where no ``artifact`` is given, then build and check each of ``engines``."""
        with tempfile.TemporaryDirectory(prefix="hybridge-hw-") as folder:
            self._step("gpu", None, self._gpu)
            if artifact is None:
                artifact = Path(folder) / "artifact"
                self._step("export", None, lambda: _export(Path(folder) / "artifact"))
            for engine in engines:
                self._engine(artifact, engine)

    def _gpu(self) -> dict[str, Any]:
        if self._machine["gpu"] is None:
            raise EngineError("expected an NVIDIA GPU and its driver, found none: run this on the device to check")
        return {}

    def _engine(self, artifact: Path, engine: str) -> None:
        if not self._step("build", engine, lambda: self._build(artifact, engine)):
            return
        for name, step in (("verify", _verify), ("generate", _generate), ("benchmark", _benchmark)):
            self._step(name, engine, lambda step=step: step(artifact))  # type: ignore[misc]

    def _build(self, artifact: Path, engine: str) -> dict[str, Any]:
        rows, tokens = self._max_batch, self._max_seq_len
        record = hybridge.build_engine(
            artifact,
            overwrite=True,
            max_batch_size=rows,
            max_seq_len=tokens,
            **ENGINES[engine],  # type: ignore[arg-type]
        )
        kept = ("library", "library_version", "compute_capabilities", "nbytes", "build_seconds", "layers", "bindings")
        return {**{name: getattr(record, name) for name in kept}, "plugins": asdict(record.plugins)}

    def _step(self, name: str, engine: str | None, run: Callable[[], dict[str, Any]]) -> bool:
        """Run and record a step; False when it failed, or was skipped because one that all need has failed."""
        step: dict[str, Any] = {"step": name, **({} if engine is None else {"engine": engine}), "status": SKIPPED}
        self.steps.append(step)
        if any(s["status"] == FAILED and s["step"] in NEEDED_BY_ALL for s in self.steps):
            return False
        started = time.perf_counter()
        try:
            step.update(run(), status=PASSED)
        except HybridgeError as error:
            step.update(status=FAILED, error=str(error))
        except Exception as error:
            step.update(status=FAILED, error=f"{type(error).__name__}: {error}", traceback=traceback.format_exc())
        step["seconds"] = round(time.perf_counter() - started, 3)
        line = f"{name:10} {engine or '':16} {step['status']}  {step.get('error', '')}"
        print(line.rstrip(), file=sys.stderr, flush=True)
        return bool(step["status"] == PASSED)


def _export(out: Path) -> dict[str, Any]:
    return {"checkpoint": CHECKPOINT.name, "dtype": hybridge.export(CHECKPOINT, out).dtype}


def _verify(artifact: Path) -> dict[str, Any]:
    """Logits and states against ONNX Runtime; EngineError naming the worst when one is out of tolerance."""
    found, expected = create_dense_engine(artifact, CHECKED), create_dense_engine(artifact, REFERENCE)
    try:
        comparisons = compare_engines(found, expected)
    finally:
        found.close()
        expected.close()
    wrong = [comparison for comparison in comparisons if not comparison.passed]
    if wrong:
        first = wrong[0]
        raise EngineError(
            f"expected {first.what} of the step {first.step!r} within {first.tolerance:g} of {REFERENCE}, found "
            f"{first.error}: {len(wrong)} of {len(comparisons)} comparisons differ; report this file"
        )
    return {"comparisons": [asdict(comparison) for comparison in comparisons]}


def _generate(artifact: Path) -> dict[str, Any]:
    """Greedy text of both engines: equal except for rounding, so the texts are shown and not compared."""
    texts = {}
    for name in (CHECKED, REFERENCE):
        with hybridge.LLM(artifact, engine=name) as llm:
            texts[name] = llm.generate(PROMPT, max_new_tokens=NEW_TOKENS).text
    return {"prompt": PROMPT, "texts": texts}


def _benchmark(artifact: Path) -> dict[str, Any]:
    """Prefill and decode speed of both engines."""
    reports = {}
    for name in (CHECKED, REFERENCE):
        engine = create_dense_engine(artifact, name)
        try:
            tokens = min(BENCHMARK_TOKENS, engine.max_seq_len - 1)
            reports[name] = run_benchmark(engine, (tokens,), (tokens,), repetitions=REPETITIONS).to_json()
        finally:
            engine.close()
    return {"benchmarks": reports}


if __name__ == "__main__":
    sys.exit(main())
