"""How much memory this process can still use, from Linux's /proc and its control groups (version 2)."""

from __future__ import annotations

import contextlib
from pathlib import Path

_PROC, _GROUPS = Path("/proc"), Path("/sys/fs/cgroup")


def available_memory(proc: Path = _PROC, groups: Path = _GROUPS) -> int:
    """Bytes that can be used without swapping; 0 where the system does not say.

    Pages of files count as available, because the system can drop them. In a control group with a limit, as of a
    container, its limit counts, too.
    """
    try:
        available = _field(proc / "meminfo", "MemAvailable:") * 1024
    except (OSError, ValueError):
        return 0
    with contextlib.suppress(OSError, ValueError):  # no such group, or no limit
        lines = (proc / "self" / "cgroup").read_text(encoding="utf-8").splitlines()
        (path,) = (line.removeprefix("0::/") for line in lines if line.startswith("0::/"))
        group = groups / path
        limit = int((group / "memory.max").read_text(encoding="ascii"))
        available = min(available, max(0, limit - _field(group / "memory.stat", "anon")))
    return available


def _field(path: Path, name: str) -> int:
    """The number after ``name`` in a file with a field in each line. ValueError without exactly one."""
    lines = map(str.split, path.read_text(encoding="ascii").splitlines())
    (number,) = (words[1] for words in lines if words[:1] == [name] and len(words) > 1)
    return int(number)
