"""Pages of mapped files are released, and only those that the system can read again."""

from __future__ import annotations

import mmap
import re
import time
from pathlib import Path

import numpy as np
import pytest

from hybridge.trt_plugins.build.mapped_weights import pages_released, release_pages

NBYTES = 1 << 22


def resident(path: Path) -> int:
    """Bytes of ``path`` that are in this process's memory."""
    found = re.findall(rf"{re.escape(str(path))}\n(?:.*\n)*?Rss: +(\d+) kB", Path("/proc/self/smaps").read_text())
    return sum(int(size) << 10 for size in found)


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    path = tmp_path / "weights" / "model.safetensors"
    path.parent.mkdir()
    path.write_bytes(np.arange(NBYTES // 8).tobytes())
    return path


def test_read_pages_leave_the_process_and_can_be_read_again(weights: Path) -> None:
    with weights.open("rb") as file, mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE, mmap.PROT_READ) as mapped:
        values = np.frombuffer(mapped, np.int64)
        total = int(values.sum())
        assert resident(weights) == NBYTES
        assert release_pages(weights.parent / "others") == 0 and resident(weights) == NBYTES
        assert release_pages(weights.parent.parent) == NBYTES and resident(weights) == 0
        assert int(values.sum()) == total
        with pages_released(weights.parent):
            while resident(weights):
                time.sleep(0.01)
        del values


def test_changed_pages_stay(weights: Path) -> None:
    with weights.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) as mapped:
        mapped[:3] = b"new"
        assert release_pages(weights.parent) == 0
        assert mapped[:3] == b"new"
