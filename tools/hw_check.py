#!/usr/bin/env python3
"""Builds, verifies and measures TensorRT engines on this machine's GPU; writes a JSON report and an HTML page.

    python tools/hw_check.py [FOLDER] [--report FILE.json]

Without FOLDER, the demo checkpoint is exported first (extra "export"). See tools/README.md.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hardware.artifacts import artifact_document, export_artifacts, find_artifacts
from hardware.forms import FORMS
from hardware.machine import machine_document
from hardware.page import write_page
from hardware.process import run_isolated
from hardware.report import Report
from hardware.steps import STEPS, UNSUPPORTED
from hardware.subject import Subject

from hybridge.artifact.errors import EngineError, HybridgeError

MINUTES = 20.0
Runner = Callable[[Subject, Sequence[str], float], Iterator[Mapping[str, Any]]]


def main(arguments: Sequence[str] | None = None, runner: Runner = run_isolated) -> int:
    """The exit code: 0 when every step passed, 1 when one failed or was skipped, 2 for bad usage."""
    options = _parser().parse_args(arguments)
    if options.export_only is not None:
        return _export_only(options.export_only)
    report = Report(machine_document())
    try:
        with tempfile.TemporaryDirectory(prefix="hybridge-hw-") as scratch:
            _check(report, options, Path(scratch), runner)
    finally:
        report.write(options.report)
        page = options.report.with_suffix(".html")
        write_page(page, report.document())
        print(f"wrote {options.report} and {page}", file=sys.stderr)
    return 0 if report.passed else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path, help="an artifact, or a folder that --export-only wrote")
    parser.add_argument("--report", type=Path, default=Path("hw-check.json"), help="the report to write")
    parser.add_argument("--form", action="append", choices=list(FORMS), help="only this engine; may be repeated")
    parser.add_argument("--step", action="append", choices=list(STEPS), help="only build and this; may be repeated")
    parser.add_argument("--max-batch", type=int, help="rows of the engines (default: up to 8)")
    parser.add_argument("--max-seq-len", type=int, help="tokens of a row (default: the preset's)")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="stop after this time (default: 20)")
    parser.add_argument("--export-only", type=Path, metavar="OUT", help="export the artifacts to OUT and end")
    return parser


def _export_only(out: Path) -> int:
    try:
        export_artifacts(out)
    except HybridgeError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"wrote {out}: copy it to the device", file=sys.stderr)
    return 0


def _check(report: Report, options: argparse.Namespace, scratch: Path, runner: Runner) -> None:
    """Every form on its artifact. A failed step does not end the check; without a GPU nothing is built."""
    deadline = time.monotonic() + 60 * options.minutes
    artifacts: dict[str, Path] = {}

    def gpu() -> None:
        if report.machine["gpu"] is None:
            raise EngineError("expected an NVIDIA GPU and its driver, found none: run this on the device to check")

    def prepare() -> None:
        artifacts.update(export_artifacts(scratch) if options.folder is None else find_artifacts(options.folder))
        report.artifacts = {name: artifact_document(folder) for name, folder in artifacts.items()}

    if not (report.run("gpu", gpu) and report.run("artifacts", prepare)):
        return
    names = [name for name in STEPS if options.step is None or name in ("build", *options.step)]
    for name in options.form or list(FORMS):
        form = FORMS[name]
        if form.artifact not in artifacts:
            reason = f"expected the artifact {form.artifact!r} for it, found {', '.join(artifacts)}"
            report.add({"step": "form", "form": name, "status": UNSUPPORTED, "seconds": 0.0, "reason": reason})
            continue
        subject = Subject(artifacts[form.artifact], form, options.max_batch, options.max_seq_len)
        for record in runner(subject, names, deadline):
            report.add({"step": record["step"], "form": name, **record})


if __name__ == "__main__":
    sys.exit(main())
