"""The log of a failed build is kept, named, and removed by the next build that succeeds."""

from __future__ import annotations

from pathlib import Path

import pytest

from hybridge.artifact.errors import EngineError
from hybridge.trt_plugins.build.failed_log import failed_log_path, saved_log


def test_a_failed_build_keeps_its_log(tmp_path: Path) -> None:
    log, saved = tmp_path / "build.log", failed_log_path(tmp_path / "rtx-ada")
    for text in ("first", "second"):
        log.write_text(text)
        with (
            pytest.raises(EngineError, match=r"^no: TensorRT's log is kept in .*rtx-ada.failed.log$"),
            saved_log(log, saved),
        ):
            raise EngineError("no")
        assert saved.read_text() == text and not log.exists()


def test_a_good_build_removes_an_older_one(tmp_path: Path) -> None:
    log, saved = tmp_path / "build.log", failed_log_path(tmp_path / "rtx-ada")
    for path in (log, saved):
        path.write_text("x")
    with saved_log(log, saved):
        pass
    assert log.exists() and not saved.exists()


def test_a_build_without_a_log_names_none(tmp_path: Path) -> None:
    log, saved = tmp_path / "build.log", failed_log_path(tmp_path / "rtx-ada")
    for prepare in (lambda: None, log.touch):
        prepare()
        with pytest.raises(EngineError, match=r"^no$"), saved_log(log, saved):
            raise EngineError("no")
    assert not saved.exists()


def test_an_interrupted_build_leaves_no_files(tmp_path: Path) -> None:
    log, saved = tmp_path / "build.log", failed_log_path(tmp_path / "rtx-ada")
    log.write_text("x")
    with pytest.raises(KeyboardInterrupt), saved_log(log, saved):
        raise KeyboardInterrupt
    assert not saved.exists()
