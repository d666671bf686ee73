"""The library names that TensorRT-RTX's parser opens: without them it aborts the process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hybridge.artifact.errors import EngineError
from hybridge.trt_plugins.build import rtx_libraries
from hybridge.trt_plugins.build.child import child_environment
from hybridge.trt_plugins.build.rtx_libraries import unversioned_links, wheel_libraries

PLUGIN_PARSE = Path(__file__).with_name("parse_with_plugin.py")


@pytest.fixture
def installation(tmp_path: Path) -> Iterator[Path]:
    """A folder as the wheel has it, read-only."""
    folder = tmp_path / "libs"
    folder.mkdir()
    for name in ("libtensorrt_rtx.so.1", "libother.so.1.7.1", "notes.txt"):
        (folder / name).write_text("x")
    folder.chmod(0o555)
    yield folder
    folder.chmod(0o755)


def test_links_lie_beside_a_read_only_installation(tmp_path: Path, installation: Path) -> None:
    before = sorted(installation.iterdir())
    links = tmp_path / "links"
    links.mkdir()
    made = {link.name: link.resolve() for link in unversioned_links(links, installation)}
    assert made == {
        "libtensorrt_rtx.so": installation / "libtensorrt_rtx.so.1",
        "libother.so": installation / "libother.so.1.7.1",
    }
    assert sorted(installation.iterdir()) == before


def test_existing_names_need_no_link(tmp_path: Path) -> None:
    for name in ("libtensorrt_rtx.so.1", "libtensorrt_rtx.so"):
        (tmp_path / name).write_text("x")
    links = tmp_path / "links"
    links.mkdir()
    assert unversioned_links(links, tmp_path) == []


def test_a_folder_without_links_is_an_error(installation: Path) -> None:
    absent = installation.parent / "absent"
    with pytest.raises(EngineError, match=r"a folder that can hold links.*TMPDIR"):
        unversioned_links(absent, installation)


def test_the_child_looks_there_first(tmp_path: Path, installation: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    links = tmp_path / "links"
    links.mkdir()
    monkeypatch.setattr(rtx_libraries, "wheel_libraries", lambda: installation)
    monkeypatch.setenv("LD_LIBRARY_PATH", "/opt/lib")
    assert child_environment(links)["LD_LIBRARY_PATH"] == os.pathsep.join([str(links), "/opt/lib"])


def test_nothing_changes_without_the_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rtx_libraries, "wheel_libraries", lambda: None)
    assert child_environment(tmp_path) == dict(os.environ)


@pytest.mark.skipif(wheel_libraries() is None, reason="needs the tensorrt-rtx package")
def test_parsing_a_plugin_survives(tmp_path: Path) -> None:
    """The parse aborts in the environment of this process (unless the installation has the name already)."""
    command = [sys.executable, str(PLUGIN_PARSE)]
    result = subprocess.run(command, env=child_environment(tmp_path), capture_output=True, text=True, timeout=120)
    assert (result.returncode, result.stdout.strip()) == (0, "PLUGIN_V3"), result.stderr
