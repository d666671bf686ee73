"""Compiles every kernel for every architecture; fails on unset registers, spills and local-memory stacks; needs no GPU.

python -m hybridge.trt_plugins.kernels.check [--architecture sm_87 ...] [--jobs N] [--entry TEXT] [--verbose]
"""

from __future__ import annotations

import argparse
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

from hybridge.artifact.errors import HybridgeError
from hybridge.trt_plugins.kernels.architectures import CHECKED
from hybridge.trt_plugins.kernels.catalog import sources
from hybridge.trt_plugins.kernels.compiler import compiler_version
from hybridge.trt_plugins.kernels.disk_cache import KernelCache
from hybridge.trt_plugins.kernels.resource_report import ResourceReport
from hybridge.trt_plugins.kernels.source import KernelSource


@dataclass(frozen=True)
class Finding:
    """One compilation; ``error`` says why there is no report."""

    source: KernelSource
    architecture: str
    report: ResourceReport | None
    error: str | None = None

    @property
    def problem(self) -> str | None:
        if self.report is None:
            return self.error
        return self.report.fault or (self.report.problem if self.source.hot else None)


def main(arguments: list[str] | None = None) -> int:
    """Exit code 0 when every kernel compiles, none uses unset registers and no hot one local memory, 1 otherwise."""
    parser = argparse.ArgumentParser(
        prog="python -m hybridge.trt_plugins.kernels.check", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--architecture", action="append", choices=CHECKED, help="only this one; may be repeated")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="compilations at a time")
    parser.add_argument("--entry", default="", help="only kernels whose label contains this text")
    parser.add_argument("--verbose", action="store_true", help="a line for every compilation")
    options = parser.parse_args(arguments)
    chosen = [source for source in dict.fromkeys(sources()) if options.entry in source.label]
    work = [(source, name) for source in chosen for name in options.architecture or CHECKED]
    failed = 0
    with ProcessPoolExecutor(max_workers=max(1, options.jobs)) as pool:
        for finding in pool.map(_compile, work, chunksize=4):
            failed += finding.problem is not None
            if finding.problem is not None or options.verbose:
                print(_line(finding), flush=True)
    print(f"{len(work)} compilations of {len(chosen)} kernels by NVRTC {compiler_version()}, {failed} with a problem")
    return 1 if failed or not work else 0


def _compile(work: tuple[KernelSource, str]) -> Finding:
    source, name = work
    try:
        report = KernelCache().get(source, name, with_report=True).report
    except HybridgeError as error:
        return Finding(source, name, None, str(error))
    return Finding(source, name, report, None if report is not None else "the assembler reported no resources")


def _line(finding: Finding) -> str:
    report = finding.report
    found = f"{report.registers} registers, {report.shared_bytes} B shared" if report is not None else "not compiled"
    problem = f": {finding.problem}" if finding.problem else ""
    return f"{finding.architecture:8} {finding.source.label}: {found}{problem}"


if __name__ == "__main__":
    sys.exit(main())
