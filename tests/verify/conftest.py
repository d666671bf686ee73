"""Settings for tests that run torch on models of a few kilobytes."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(scope="session", autouse=True)
def one_torch_thread() -> None:
    """On such small tensors a second thread only waits."""
    torch.set_num_threads(1)
