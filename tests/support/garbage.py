"""What collecting the tests made is left alone by the garbage collector: every full collection would walk all of it."""

from __future__ import annotations

import gc


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()
