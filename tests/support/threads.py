"""One torch thread per test process: several processes run at once, and threads that wait for each other spin."""

from __future__ import annotations


def pytest_configure() -> None:
    try:
        import torch
    except ImportError:
        return
    torch.set_num_threads(1)
