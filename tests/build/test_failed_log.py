"""The log of a failed build is kept, named, and removed by the next build that succeeds."""

from __future__ import annotations

from pathlib import Path

import pytest

from hybridge.artifact.errors import EngineError
from hybridge.trt_plugins.build.failed_log import failed_log_path, kept_log


def test_a_failed_build_keeps_its_log(tmp_path: Path) -> None:
    log, kept = tmp_path / "build.log", failed_log_path(tmp_path / "rtx-ada")
    for text in ("first", "second"):
        log.write_text(text)
        with (
            pytest.raises(EngineError, match=r"^no: TensorRT's log is kept in .*rtx-ada.failed.log$"),
            kept_log(log, kept),
        ):
            raise EngineError("no")
        assert kept.read_text() == text and not log.exists()


def test_a_good_build_removes_an_older_one(tmp_path: Path) -> None:
    log, kept = tmp_path / "build.log", failed_log_path(tmp_path / "rtx-ada")
    for path in (log, kept):
        path.write_text("x")
    with kept_log(log, kept):
        pass
    assert log.exists() and not kept.exists()


def test_a_build_without_a_log_names_none(tmp_path: Path) -> None:
    log, kept = tmp_path / "build.log", failed_log_path(tmp_path / "rtx-ada")
    for prepare in (lambda: None, log.touch):
        prepare()
        with pytest.raises(EngineError, match=r"^no$"), kept_log(log, kept):
            raise EngineError("no")
    assert not kept.exists()


def test_an_interrupted_build_keeps_nothing(tmp_path: Path) -> None:
    log, kept = tmp_path / "build.log", failed_log_path(tmp_path / "rtx-ada")
    log.write_text("x")
    with pytest.raises(KeyboardInterrupt), kept_log(log, kept):
        raise KeyboardInterrupt
    assert not kept.exists()
