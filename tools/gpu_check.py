#!/usr/bin/env python3
"""Checks and measures everything that needs an NVIDIA GPU, the most valuable first, and saves results as they come.

    python tools/gpu_check.py [--out FOLDER] [--from STAGE] [--until STAGE] [--seconds SECONDS]

Every result is written when it is there. tools/README.md describes the stages.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(1, str(ROOT))  # the checkout need not be installed
from gpu_stages.gpu_tests import collect, counted, gpu_test_files, shard_commands  # noqa: E402
from gpu_stages.machine import machine  # noqa: E402
from gpu_stages.processes import Command, Outcome, run_all  # noqa: E402

from benchmarks.kernels.groups import GROUPS  # noqa: E402

SUMMARY = "summary.json"
PASSED, FAILED, STOPPED, SKIPPED = "passed", "failed", "out of time", "skipped"
# Few tests of each kernel: rows of no tokens, packed rows, slots left out, slices of wider tensors, chunks of both
# lengths, rows in segments, and every form of one-token attention and of the delta rule's decoding.
SANITIZED = (
    "empty_rows or without_a_place or padding_rows or rows_may_be_slices or row_of_zeros or (little_shared and 33) "
    "or slices_of_one_projection "
    "or (ragged_rows_in_segments and [True-base) or leaves_its_counters or (short_rows_take and 4]) "
    "or (any_share_of_the_work and 31) or (paged_attention_decode and block_sizes and 64) "
    "or (many_states_of_16_bits and 128-128 and dtype1 and True) "
    "or (tiled_experts and formats) or (tiles_gpu and formats and 640) or (the_first_of_the_largest and 2049)"
)
# For racecheck, which is much slower: one or two small calls of each kernel whose threads share memory. Not of
# paged_attention_wide_wgmma, nor of long rows in update_ssm_state_prefill_wgmma ("heads"), where one lane arrives at a
# barrier for its warp after __syncwarp(): racecheck does not see that other lanes' accesses come before.
RACED = (
    "(prefill_gpu and padding_rows and not float32) or (ragged_rows_in_segments and [True-base) "
    "or (gated_delta_rule_decode_gpu and padding_rows) or (gated_delta_rule_8bit_gpu and empty_row and True) "
    "or gated_output or (delta_states and bfloat16 and 40 and False) or (in_blocks_that_stay and bfloat16 and 64) "
    "or (ssm_states and 24) or (mamba2_conv_scan_gpu and padding_rows and not heads) "
    "or (causal_conv1d_gpu and padding_rows) or rows_may_be_slices or row_of_zeros_gives_zeros "
    "or (linear_decode_gpu and test_types and bfloat16-bfloat16) or leaves_its_counters "
    "or (the_first_of_the_largest and 2049) or (tokens_are_those_of_the_host and 2047-normal-0.7) "
    "or (several_rows_in_a_block and None and gap) or (rows_cut_into_chunks and -256-torch.bfloat16-False)"
)
# Tests and options of each tool. memcheck: what the driver answers to questions of torch is not an error of a kernel.
SANITIZERS = {"memcheck": (SANITIZED, ("--report-api-errors", "no")), "racecheck": (RACED, ())}
SANITIZER_ERROR = 9
COLLECTION_SECONDS = 60.0
GROUPS_OF_A_PROCESS = 6


@dataclass(frozen=True)
class Run:
    """folder: where results go. jobs: processes beside each other where nothing is timed. only: pytest's -k.

    work: a folder for benchmarks of a whole model to keep checkpoint and artifacts in, or to take them from. commit:
    for their documents, where the files are not in a checkout. peers: a folder of packages that only benchmarks import.
    """

    folder: Path
    jobs: int
    only: str = ""
    work: Path | None = None
    commit: str | None = None
    peers: Path | None = None


@dataclass(frozen=True)
class Stage:
    """limit: seconds. work: does it in that time and returns fields of the summary, of which "status" is one."""

    limit: float
    work: Callable[[Run, float], dict[str, Any]]


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code: 0 when every stage passed, 1 when one did not, 2 for bad usage or no GPU."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("build/gpu-check"), help="results (default: %(default)s)")
    parser.add_argument("--stage", action="append", choices=list(STAGES), help="only this one; may be repeated")
    parser.add_argument(
        "--from", dest="first", choices=list(STAGES), metavar="STAGE", help="this stage and those after it"
    )
    parser.add_argument(
        "--until", dest="last", choices=list(STAGES), metavar="STAGE", help="this stage and those before it"
    )
    parser.add_argument("--limit", action="append", default=[], metavar="NAME=SECONDS", help="another limit of a stage")
    parser.add_argument("--seconds", type=float, default=math.inf, help="a limit of all stages together")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes that are not timed, at a time")
    parser.add_argument("--only", default="", metavar="TEXT", help="only tests that pytest's -k TEXT selects")
    parser.add_argument("--work", type=Path, help="where benchmarks of a whole model keep checkpoint and artifacts")
    parser.add_argument("--commit", help="the commit of the files, where they are not in a checkout")
    parser.add_argument("--peers", type=Path, metavar="FOLDER", help="packages that only benchmarks shall import")
    options = parser.parse_args(arguments)
    limits = {name: stage.limit for name, stage in STAGES.items()}
    for text in options.limit:
        name, _, seconds = text.partition("=")
        if name not in limits or not seconds.replace(".", "", 1).isdigit():
            parser.error(f"--limit: expected NAME=SECONDS with a name of {', '.join(limits)}, found {text}")
        limits[name] = float(seconds)
    names = [name for name in _between(options.first, options.last) if name in (options.stage or STAGES)]
    if not names:
        parser.error("--stage, --from, --until: expected a stage, found that these leave none")
    options.out.mkdir(parents=True, exist_ok=True)
    work, peers = (folder.resolve() if folder is not None else None for folder in (options.work, options.peers))
    run = Run(options.out.resolve(), max(1, options.jobs), options.only, work, options.commit, peers)
    return run_stages(run, names, limits, options.seconds)


def _between(first: str | None, last: str | None) -> list[str]:
    """The stages from ``first`` to ``last``, both included; None for no limit."""
    names = list(STAGES)
    return names[names.index(first) if first else 0 : names.index(last) + 1 if last else None]


def run_stages(run: Run, names: Sequence[str], limits: Mapping[str, float], seconds: float = math.inf) -> int:
    """Run the stages in their order and write the summary after each. seconds: a limit of all together."""
    end = time.monotonic() + seconds
    summary: dict[str, Any] = {"gpu_check": 1, "machine": machine(), "stages": {}}
    if summary["machine"]["gpu"] is None:
        print(
            "error: expected an NVIDIA GPU and its driver, found none: run this on a machine with one", file=sys.stderr
        )
        return 2
    for name in STAGES:
        if name not in names:
            continue
        started = time.monotonic()
        limit = max(0.0, min(limits[name], end - started))
        print(f"{name}: at most {limit:.0f} s", file=sys.stderr, flush=True)
        result = STAGES[name].work(run, limit) if limit else {"status": STOPPED}
        took = round(time.monotonic() - started, 1)
        summary["stages"][name] = {**result, "seconds": took}
        (run.folder / SUMMARY).write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
        print(f"{name}: {result['status']} after {took} s", file=sys.stderr, flush=True)
    return 0 if all(stage["status"] in (PASSED, SKIPPED) for stage in summary["stages"].values()) else 1


def tests(run: Run, limit: float) -> dict[str, Any]:
    """Every test marked gpu."""
    return _tests(run, limit, "tests", gpu_test_files(), run.only, ())


def sanitizer(tool: str) -> Callable[[Run, float], dict[str, Any]]:
    """A short choice of the kernels' tests under one tool of compute-sanitizer."""

    def work(run: Run, limit: float) -> dict[str, Any]:
        program = shutil.which("compute-sanitizer")
        if program is None:
            return {"status": SKIPPED, "reason": "needs compute-sanitizer of the CUDA toolkit on PATH"}
        chosen, options = SANITIZERS[tool]
        prefix = (program, "--tool", tool, "--error-exitcode", str(SANITIZER_ERROR), *options)
        files = [file for file in gpu_test_files() if file.startswith("tests/kernels/")]
        return _tests(run, limit, tool, files, chosen, prefix)

    return work


def _tests(
    run: Run, limit: float, name: str, files: Sequence[str], chosen: str, prefix: Sequence[str]
) -> dict[str, Any]:
    end = time.monotonic() + limit
    found = collect(files, chosen, run.folder / f"{name}-collect.log", min(limit, COLLECTION_SECONDS))
    if not found.ids:
        status = FAILED if time.monotonic() < end else STOPPED
        return {"status": status, "reason": "expected tests, found none", "uncollected": found.uncollected}
    commands = shard_commands(found.ids, run.jobs, run.folder, name, prefix)
    outcomes = run_all(commands, end - time.monotonic(), run.jobs)
    counts = counted(outcomes, len(found.ids))
    status = _status(outcomes)
    if status == PASSED and (counts["failed"] or counts["not_run"] or not counts["passed"]):
        status = FAILED
    return {"status": status, **counts, "uncollected": found.uncollected, "processes": _described(outcomes)}


def kernel_results(run: Run, limit: float) -> dict[str, Any]:
    """Results of every benchmarked call without its time: compiles, on all cores, what the next stage measures."""
    commands = [_benchmark(run, f"kernels {group}", "check", "--check", "--groups", group) for group in GROUPS]
    outcomes = run_all(commands, limit, run.jobs)
    return {"status": _status(outcomes), "processes": _described(outcomes)}


def kernels(run: Run, limit: float) -> dict[str, Any]:
    """Kernel benchmarks, several groups a process, whose start takes seconds, and one document of all that are there.

    The groups of a process that ended without a document run again, each in a process of its own.
    """
    end = time.monotonic() + limit
    groups = list(GROUPS)
    parts = [groups[begin : begin + GROUPS_OF_A_PROCESS] for begin in range(0, len(groups), GROUPS_OF_A_PROCESS)]
    outcomes = run_all([_timed_groups(run, part) for part in parts], limit)
    ended = zip(parts, outcomes, strict=True)
    again = [group for part, each in ended if each.code is not None and not _document(each) for group in part]
    outcomes += run_all([_timed_groups(run, [group]) for group in again], end - time.monotonic())
    documents = [found for each in outcomes if (found := _document(each))]
    if documents:
        rows = {name: found for each in documents for name, found in each["results"]["groups"].items()}
        joined = {name: value for each in documents for name, value in each["results"].items()}
        results = {**joined, "groups": {name: rows[name] for name in GROUPS if name in rows}}
        settings = {**documents[0]["settings"], "groups": list(results["groups"])}
        correct = all(each["correct"] for each in documents)
        merged = {**documents[0], "settings": settings, "correct": correct, "gates": [], "results": results}
        (run.folder / "kernels.json").write_text(json.dumps(merged, indent=2) + "\n", encoding="utf-8")
    return {"status": _status(outcomes), "processes": _described(outcomes)}


def _timed_groups(run: Run, groups: Sequence[str]) -> Command:
    return _benchmark(run, f"kernels {groups[0]}" + " and more" * (len(groups) > 1), "time", "--groups", *groups)


def _document(outcome: Outcome) -> dict[str, Any]:
    """What a benchmark printed; empty where it failed or was stopped."""
    out = outcome.command.out
    text = out.read_text(encoding="utf-8") if out is not None and out.exists() else ""
    document: dict[str, Any] = json.loads(text) if text else {}
    return document


def benchmark(name: str, model: str | None = "", *options: str) -> Callable[[Run, float], dict[str, Any]]:
    """One benchmark of the torch engine on a whole model.

    model: the folder in ``Run.work`` of another model; None: it keeps nothing there. options: its further arguments.
    """

    def work(run: Run, limit: float) -> dict[str, Any]:
        where = () if run.work is None or model is None else ("--work", str(run.work / model))
        outcomes = run_all([_benchmark(run, name, "time", *options, *where)], limit)
        return {"status": _status(outcomes), "processes": _described(outcomes)}

    return work


def _benchmark(run: Run, name: str, kind: str, *options: str) -> Command:
    label = f"{name.replace(' ', '-')}-{kind}"
    out = run.folder / f"{label}.json"
    out.unlink(missing_ok=True)
    commit = () if run.commit is None else ("--commit", run.commit)
    command = (sys.executable, "-m", "benchmarks", name.split()[0], "--json", *commit, *options)
    return Command(command, run.folder / f"{label}.log", out, _with_peers(run.peers))


def _with_peers(peers: Path | None) -> dict[str, str]:
    """The environment of a benchmark: packages in ``peers`` come before those installed."""
    if peers is None:
        return {}
    before = os.environ.get("PYTHONPATH")
    return {"PYTHONPATH": os.pathsep.join([str(peers), *([before] if before else [])])}


def _status(outcomes: Sequence[Outcome]) -> str:
    if any(outcome.code not in (0, None) for outcome in outcomes):
        return FAILED
    return STOPPED if any(outcome.code is None for outcome in outcomes) else PASSED


def _described(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    return [{"log": o.command.log.name, "code": o.code, "seconds": round(o.seconds, 1)} for o in outcomes]


# The most valuable first. An NVIDIA H200 with 16 cores took, in seconds: 327 for 4,112 tests; 143 and 261 for kernels
# and all their peers; 67 for memcheck; 114, 41, 106, 52, 20, 35, 41, 36, 21 and 31 from torch-engine to
# accelerated-generate; 146 for racecheck. A slower host took up to 1.3 times as long.
STAGES: dict[str, Stage] = {
    "tests": Stage(480.0, tests),
    "kernel-results": Stage(200.0, kernel_results),
    "kernels": Stage(300.0, kernels),
    "memcheck": Stage(120.0, sanitizer("memcheck")),
    "torch-engine": Stage(150.0, benchmark("torch_engine")),
    "torch-engine-int4": Stage(90.0, benchmark("torch_engine_int4")),
    "torch-engine-experts": Stage(150.0, benchmark("torch_engine_experts", "experts")),
    "serving": Stage(120.0, benchmark("serving_torch")),
    "sampled-steps": Stage(60.0, benchmark("sampled_steps", "wide-vocabulary")),
    "state-rings": Stage(90.0, benchmark("state_rings")),
    "speculation": Stage(120.0, benchmark("speculation_torch")),
    "long-context": Stage(90.0, benchmark("long_context", "long")),
    "grammar-masks": Stage(60.0, benchmark("grammar_masks_torch")),
    "accelerated-generate": Stage(60.0, benchmark("accelerated_generate", None, "--device", "cuda")),
    "racecheck": Stage(240.0, sanitizer("racecheck")),
}


if __name__ == "__main__":
    sys.exit(main())
