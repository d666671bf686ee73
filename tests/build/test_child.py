"""Whatever happens to the building process becomes a typed error, and the process never outlives the call."""

from __future__ import annotations

import errno
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from hybridge.artifact.child_python import child_command
from hybridge.artifact.errors import EngineError
from hybridge.artifact.progress import NoProgress
from hybridge.trt_plugins.build import child
from hybridge.trt_plugins.build.child import run_job
from hybridge.trt_plugins.build.job import BuildJob, BuildResult

JOB = BuildJob("tensorrt_rtx", "model.onnx", ["8.6"], False, {}, [], None, None, "engine", "cache", None)
READ = (
    "import json, os, sys; request = json.loads(sys.stdin.buffer.readline()); job = request['job']; "
    "model = sys.stdin.buffer.read(request['model_bytes']); "
)
SAY = READ + "say = lambda **m: print(json.dumps(m), flush=True); "


class Recorder(NoProgress):
    def __init__(self) -> None:
        self.events: list[tuple] = []

    def start(self, stage: str, total: int | None = None, unit: str = "") -> None:
        self.events.append((stage, total))

    def advance(self, amount: int = 1) -> None:
        self.events.append((amount,))


def run(monkeypatch: pytest.MonkeyPatch, folder: Path, script: str, progress: NoProgress | None = None) -> BuildResult:
    """Run ``script`` in place of the worker."""
    monkeypatch.setattr(child, "_COMMAND", script)
    return run_job(JOB, b"the model", folder / "build.log", progress or NoProgress())


def test_result_and_progress(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    progress = Recorder()
    result = "say(result=dict(library_version='1', nbytes=len(model), sha256=job['engine'], layers={}, tensors=[]))"
    script = f"{SAY} say(stage='a', total=3); say(advance=2); {result}"
    assert run(monkeypatch, tmp_path, script, progress) == BuildResult("1", 9, "engine", {}, [])
    assert progress.events == [("a", 3), (2,)]


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (SAY + "say(error='no such layer', kind='build')", "^no such layer$"),
        (SAY + "say(stage='read', total=None); sys.stderr.write('lost'); sys.exit(3)", "exit code 3.*'read': lost"),
        (
            SAY + "say(stage='build', total=None); os.kill(os.getpid(), 11)",
            "signal SIGSEGV.*'build': it printed nothing",
        ),
        ("import os; os.kill(os.getpid(), 6)", "signal SIGABRT"),
        ("import os; os.kill(os.getpid(), 9)", r"signal SIGKILL.*\(memory may have run out: .* add swap"),
        (
            SAY + "print('terminate: std::bad_alloc', file=sys.stderr, flush=True); os.kill(os.getpid(), 6)",
            "SIGABRT.*add swap",
        ),
        (READ, "exit code 0"),
    ],
)
def test_failures_are_typed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: str, words: str) -> None:
    with pytest.raises(EngineError, match=words):
        run(monkeypatch, tmp_path, script)


def test_a_full_disk_stays_an_os_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(OSError) as caught:
        run(monkeypatch, tmp_path, f"{SAY} say(error='full', kind='os', errno={errno.ENOSPC})")
    assert caught.value.errno == errno.ENOSPC


def test_an_interrupted_call_ends_the_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Interrupt(NoProgress):
        def start(self, stage: str, total: int | None = None, unit: str = "") -> None:
            self.pid = int(stage)
            raise KeyboardInterrupt

    progress = Interrupt()
    script = f"{SAY} import time; say(stage=str(os.getpid()), total=None); time.sleep(60)"
    with pytest.raises(KeyboardInterrupt):
        run(monkeypatch, tmp_path, script, progress)
    with pytest.raises(ProcessLookupError):
        os.kill(progress.pid, 0)


def test_native_prints_go_to_the_log(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(EngineError):
        run(monkeypatch, tmp_path, READ + "sys.stderr.write('from C++')")
    assert (tmp_path / "build.log").read_text() == "from C++"


def test_a_killed_call_leaves_neither_process_nor_files(tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    (scratch / "model.engine").write_bytes(b"half of it")
    job = replace(JOB, library="no_such_module", scratch=[str(scratch)])
    read_end, write_end = os.pipe()
    with subprocess.Popen(child_command(child._COMMAND), stdin=subprocess.PIPE, stdout=write_end, text=False) as worker:
        os.close(write_end)
        os.close(read_end)  # so that its first message has no reader, and it can only wait for the end of its input
        assert worker.stdin is not None
        worker.stdin.write(child.request(job, b""))
        worker.stdin.flush()
        with pytest.raises(subprocess.TimeoutExpired):
            worker.wait(timeout=1)
        worker.stdin.close()
        assert worker.wait(timeout=60) == 1
    assert not scratch.exists()
