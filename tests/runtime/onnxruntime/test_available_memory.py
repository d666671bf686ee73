"""Available memory, from files as Linux writes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from hybridge.runtime.engines.onnxruntime.available_memory import available_memory

MEMINFO = "MemTotal:       24684128 kB\nMemFree:         1000000 kB\nMemAvailable:    2000000 kB\nBuffers: 5 kB\n"
AVAILABLE = 2000000 * 1024
STAT = "anon 1000000\nanon_thp 7\nfile 999\n"


@pytest.mark.parametrize(
    ("group", "limit", "stat", "expected"),
    [
        ("0::/", "1500000", STAT, 500000),
        ("0::/a.slice/b.service", "1500000", STAT, 500000),
        ("4:memory:/c\n0::/a", "1500000", STAT, 500000),
        ("0::/", "900000", STAT, 0),
        ("0::/", "99999999999999", STAT, AVAILABLE),
        ("0::/", "max", STAT, AVAILABLE),
        ("0::/", "1500000", "", AVAILABLE),
        ("4:memory:/c", "1500000", STAT, AVAILABLE),
        ("", "1500000", STAT, AVAILABLE),
    ],
)
def test_a_control_group_limits_it(group: str, limit: str, stat: str, expected: int, tmp_path: Path) -> None:
    proc, groups = tmp_path / "proc", tmp_path / "groups"
    (proc / "self").mkdir(parents=True)
    (proc / "meminfo").write_text(MEMINFO)
    (proc / "self" / "cgroup").write_text(f"{group}\n")
    folder = groups / group.rpartition("0::/")[2]
    folder.mkdir(parents=True)
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "memory.stat").write_text(stat)
    assert available_memory(proc, groups) == expected


def test_without_control_groups_it_is_that_of_the_system(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text(MEMINFO)
    assert available_memory(tmp_path, tmp_path / "none") == AVAILABLE


@pytest.mark.parametrize("content", [None, "", "MemFree: 5 kB\n", "MemAvailable: many kB\n", "MemAvailable:\n"])
def test_without_an_answer_nothing_is_available(content: str | None, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "meminfo").write_text(content)
    assert available_memory(tmp_path, tmp_path) == 0
