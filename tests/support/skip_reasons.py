"""A pytest plugin: a test may be skipped only for a reason that it prints."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

# What pytest itself writes when a test gives no reason.
NO_REASON = frozenset({"", "Skipped", "Skipped:", "unconditional skip"})


def lacks_reason(report: pytest.TestReport | pytest.CollectReport) -> bool:
    """True when ``report`` is a skip (not an expected failure) without a reason."""
    if not report.skipped or hasattr(report, "wasxfail"):
        return False
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr or "")
    return reason.removeprefix("Skipped: ").strip() in NO_REASON


def _refuse(report: Any) -> None:
    report.outcome = "failed"
    report.longrepr = f"{report.nodeid}: skipped without a reason: give one to pytest.skip or pytest.mark.skip"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if lacks_reason(report):
        _refuse(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    if lacks_reason(report):
        _refuse(report)
    return report
