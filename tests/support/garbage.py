"""The garbage collector walks what one file of tests made: modules and what collecting the tests made live on.

Without that each full collection takes half a second once torch is imported, and verify asks for one.
"""

from __future__ import annotations

import gc
from collections.abc import Generator

import pytest


def keep_all() -> None:
    """Leave all that lives now out of later collections."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    keep_all()
    # With the interpreter's own thresholds the collector took a tenth of a run.
    gc.set_threshold(7_000)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, None, None]:
    yield
    if nextitem is not None and nextitem.path != item.path:
        keep_all()
