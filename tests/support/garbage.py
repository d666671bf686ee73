"""What collecting the tests made is left alone by the garbage collector: every full collection would walk all of it."""

from __future__ import annotations

import gc
from collections.abc import Generator

import pytest


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()
    # Modules that tests import live on, too: with the interpreter's own thresholds the collector took a tenth of a run.
    gc.set_threshold(7_000)
