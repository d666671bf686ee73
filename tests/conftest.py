"""Rules for the whole test suite."""

from __future__ import annotations

pytest_plugins = [
    "tests.support.threads",
    "tests.support.session_folders",
    "tests.support.artifacts",
    "tests.support.garbage",
    "tests.support.gpu",
    "tests.support.skip_reasons",
]
