"""Pages of a mapped file that are moved to huge pages keep their content and address, also while they are read."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest

from hybridge.artifact.limits import MIB
from hybridge.runtime.engines.onnxruntime import page_moves
from hybridge.runtime.engines.onnxruntime.page_moves import PageMover

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="only Linux moves pages"),
    pytest.mark.skipif(not page_moves._has_huge_pages(), reason="this system has no huge pages of 2 MiB"),
]

SIZE = 37 * MIB + 12345  # several chunks


class Mapped(NamedTuple):
    path: Path
    expected: np.ndarray
    part: np.ndarray


@pytest.fixture
def mapped(tmp_path: Path) -> Mapped:
    """A file of random bytes, and its map from an odd place on."""
    path = tmp_path / "weights.bin"
    content = np.random.default_rng(0).integers(0, 256, SIZE, np.uint8)
    content.tofile(path)
    return Mapped(path, content[4099:], np.memmap(path, np.uint8, "r").view(np.ndarray)[4099:])


def bytes_from_file(mapped: Mapped) -> int:
    """Bytes of the part that the process has mapped from its file, in whole pages."""
    return bytes_of_maps(mapped.part, lambda access, name: name == str(mapped.path))


def bytes_of_maps(part: np.ndarray, is_counted: Callable[[str, str], bool]) -> int:
    """Bytes of ``part`` in the process's maps of which ``is_counted`` is true, by access ("r--p") and file name."""
    start, found = part.ctypes.data, 0
    for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines():
        addresses, access, _, _, _, *name = line.split()
        first, last = (int(each, 16) for each in addresses.split("-"))
        if is_counted(access, name[0] if name else ""):
            found += max(0, min(last, start + part.nbytes) - max(first, start))
    return found


def test_moved_memory_has_the_same_content_while_threads_read_it(mapped: Mapped) -> None:
    expected = mapped.expected.view().astype(np.uint64).sum()
    sums: list[int] = []
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            sums.append(int(mapped.part.sum(dtype=np.uint64)))

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    mover = PageMover([mapped.part[: 20 * MIB], mapped.part[20 * MIB :]], delay=0)
    mover.start()
    mover.join()
    done.set()
    for reader in readers:
        reader.join()
    assert sums and set(sums) == {int(expected)}
    np.testing.assert_array_equal(mapped.part, mapped.expected)
    # Only what fills no huge page at the ends of both parts stays mapped; nothing can be written.
    in_file = bytes_from_file(mapped)
    assert in_file < 4 * 2 * MIB
    assert bytes_of_maps(mapped.part, lambda access, name: (access, name) == ("r--p", "")) == SIZE - 4099 - in_file
    # Linux was asked for huge pages: "hg" among the flags.
    flags = Path("/proc/self/smaps").read_text(encoding="utf-8").partition(f"{moved_start(mapped):x}-")[2]
    assert "hg" in flags.partition("VmFlags:")[2].partition("\n")[0].split()


def moved_start(mapped: Mapped) -> int:
    """The first address of the part that is a multiple of 2 MiB."""
    return -(-mapped.part.ctypes.data // (2 * MIB)) * 2 * MIB


def test_moving_ends_when_memory_becomes_scarce(mapped: Mapped, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([1 << 40, 1 << 40])
    monkeypatch.setattr(page_moves, "available_memory", lambda: next(answers, 0))
    mover = PageMover([mapped.part], delay=0)
    mover.start()
    mover.join()
    assert bytes_from_file(mapped) == mapped.part.nbytes - 2 * 8 * MIB
    np.testing.assert_array_equal(mapped.part, mapped.expected)


def test_a_refused_priority_changes_nothing(mapped: Mapped, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: int) -> None:
        raise PermissionError("not permitted")

    monkeypatch.setattr(os, "setpriority", refuse)
    mover = PageMover([mapped.part], delay=0)
    mover.start()
    mover.join()
    assert bytes_from_file(mapped) < 2 * 2 * MIB


@pytest.mark.parametrize("lack", ["memory", "huge pages", "time"])
def test_nothing_is_moved_if_something_is_lacking(lack: str, mapped: Mapped, monkeypatch: pytest.MonkeyPatch) -> None:
    mover = PageMover([mapped.part], delay=0)
    if lack == "memory":
        monkeypatch.setattr(page_moves, "available_memory", lambda: mapped.part.nbytes)
    elif lack == "huge pages":
        monkeypatch.setattr(page_moves, "_has_huge_pages", lambda: False)
    else:
        mover.stop()
    mover.start()
    mover.join()
    assert bytes_from_file(mapped) == mapped.part.nbytes
    np.testing.assert_array_equal(mapped.part, mapped.expected)


@pytest.mark.parametrize("refused", ["mmap", "madvise", "mprotect", "mremap"])
def test_a_refused_call_leaves_the_map_and_no_memory(
    refused: str, mapped: Mapped, monkeypatch: pytest.MonkeyPatch
) -> None:
    libc = page_moves._libc()
    owned: dict[int, int] = {}

    def allocate(address: None, nbytes: int, *options: int) -> int:
        found = int(libc.mmap(address, nbytes, *options))
        owned.update(dict.fromkeys(range(found, found + nbytes, 4096), 1))
        return found

    def release(start: int, nbytes: int) -> int:
        for page in range(start, start + nbytes, 4096):
            del owned[page]
        return int(libc.munmap(start, nbytes))

    calls = {"mmap": allocate, "munmap": release, "madvise": libc.madvise, "mprotect": libc.mprotect}
    refusing = {refused: lambda *_: page_moves._FAILED}
    monkeypatch.setattr(page_moves, "_libc", lambda: SimpleNamespace(**{**calls, "mremap": libc.mremap, **refusing}))
    mover = PageMover([mapped.part], delay=0)
    mover.start()
    mover.join()
    assert not owned
    assert bytes_from_file(mapped) == mapped.part.nbytes
    np.testing.assert_array_equal(mapped.part, mapped.expected)
