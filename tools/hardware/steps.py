"""The steps of a check of one engine form, in order, and how one of them is run and recorded."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from types import MappingProxyType
from typing import Any

import hybridge
from hardware.agreement import verify
from hardware.drift import decode_long
from hardware.graphs import compare_graphs
from hardware.serving import serve
from hardware.speed import measure
from hardware.subject import Found, Subject
from hybridge.artifact.errors import HybridgeError
from hybridge.runtime.engines.tensorrt.dense_memory_plan import dense_memory_plan
from hybridge.runtime.engines.tensorrt.paged.memory_plan import memory_plan

PASSED, FAILED, SKIPPED, UNSUPPORTED = "passed", "failed", "skipped", "unsupported"
BUILD = "build"
# Rows that the speed of a step is measured at.
_ROWS = 8
_KEPT = ("library", "library_version", "preset", "compute_capabilities", "nbytes", "build_seconds", "layers")


def build(subject: Subject) -> Found:
    """Build the engine for this machine's GPU, for up to ``_ROWS`` rows if the artifact allows them."""
    record = hybridge.build_engine(
        subject.artifact,
        overwrite=True,
        max_batch_size=subject.max_batch or min(_ROWS, subject.config.max_batch_size),
        max_seq_len=subject.max_seq_len,
        **subject.form.options,
    )
    plan = memory_plan(record) if record.row_buckets else dense_memory_plan(record)
    found = {name: getattr(record, name) for name in _KEPT}
    return {**found, "plugins": asdict(record.plugins), "planned_memory": asdict(plan)}


STEPS: Mapping[str, Callable[[Subject], Found]] = MappingProxyType(
    {
        BUILD: build,
        "verify": verify,
        "serve": serve,
        "graphs": compare_graphs,
        "drift": decode_long,
        "speed": measure,
    }
)


def run_steps(subject: Subject, names: Sequence[str], begun: Callable[[str], None]) -> Iterator[dict[str, Any]]:
    """Run ``names`` and give a record of each; ``begun`` is called before each. Nothing runs after a failed build."""
    for name in names:
        begun(name)
        record = run_step(subject, name)
        yield record
        if name == BUILD and record["status"] == FAILED:
            return


def run_step(subject: Subject, name: str) -> dict[str, Any]:
    """The record of one step; an exception is recorded."""
    started = time.perf_counter()
    try:
        found = STEPS[name](subject)
    except HybridgeError as error:
        found = {"error": str(error)}
    except Exception as error:
        found = {"error": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()}
    status = FAILED if "error" in found else PASSED
    return {"step": name, "status": status, "seconds": round(time.perf_counter() - started, 3), **found}
