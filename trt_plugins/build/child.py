"""Runs a build job in its own process and turns everything that can go wrong there into typed errors."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from hybridge.artifact.child_python import child_command
from hybridge.artifact.errors import EngineError
from hybridge.artifact.progress import Progress
from hybridge.trt_plugins.build.build_log import HOST_MEMORY_ADVICE
from hybridge.trt_plugins.build.job import BuildJob, BuildResult
from hybridge.trt_plugins.build.rtx_libraries import unversioned_links
from hybridge.trt_plugins.build.worker import OS_ERROR_KIND
from hybridge.trt_plugins.network.description import NetworkDescription

_COMMAND = "from hybridge.trt_plugins.build.worker import main; main()"


def run_job(job: BuildJob, model: bytes, log: Path, progress: Progress) -> BuildResult:
    """Build the serialized ``model`` as ``job`` says, in a child process; TensorRT's log and prints go to ``log``.

    EngineError: TensorRT failed or its process died. OSError: a file could not be written. The child never
    outlives this call, also when it is interrupted.
    """
    return BuildResult(**_answer(job, model, log, progress))


def run_description(job: BuildJob, model: bytes, log: Path, progress: Progress) -> NetworkDescription:
    """The network that TensorRT makes of ``model``; its constants go to the file ``job.constants``. Errors as in
    ``run_job``."""
    return NetworkDescription.from_json(_answer(job, model, log, progress))


def _answer(job: BuildJob, model: bytes, log: Path, progress: Progress) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="hybridge-") as folder, log.open("wb") as log_file:
        job = replace(job, scratch=[*job.scratch, folder])
        with _child(child_environment(Path(folder)), log_file) as child:
            stage, outcome = _follow(child, request(job, model), progress)
        return _result(outcome, child.returncode, stage, log)


def request(job: BuildJob, model: bytes) -> bytes:
    """The child's input."""
    return json.dumps({"job": asdict(job), "model_bytes": len(model)}).encode() + b"\n" + model


@contextmanager
def _child(environment: dict[str, str], log_file: Any) -> Iterator[subprocess.Popen[bytes]]:
    child = subprocess.Popen(
        child_command(_COMMAND),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log_file,
        env=environment,
    )
    try:
        yield child
    finally:
        child.kill()
        child.wait()
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):  # the child ended before it read everything
                    pipe.close()


def _follow(child: subprocess.Popen[bytes], request: bytes, progress: Progress) -> tuple[str, dict[str, Any]]:
    """Report the child's messages until it ends; returns its last stage and its last message."""
    assert child.stdin is not None and child.stdout is not None
    stage, message = "start", {}
    try:
        # It stays open: its end tells the child that this process is gone.
        child.stdin.write(request)
        child.stdin.flush()
    except BrokenPipeError:
        pass
    for line in child.stdout:
        message = json.loads(line)
        if "stage" in message:
            stage = message["stage"]
            progress.start(stage, message["total"])
        elif "advance" in message:
            progress.advance(message["advance"])
    child.wait()
    return stage, message


def _result(message: dict[str, Any], code: int, stage: str, log: Path) -> dict[str, Any]:
    if "result" in message:
        result: dict[str, Any] = message["result"]
        return result
    if "error" in message:
        if message["kind"] == OS_ERROR_KIND:
            raise OSError(message["errno"], message["error"])
        raise EngineError(message["error"])
    how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    text = f"TensorRT's process died ({how}) in stage {stage!r}: {_last_lines(log)}"
    if code == -signal.SIGKILL or "std::bad_alloc" in text:
        text += f" (memory may have run out: {HOST_MEMORY_ADVICE})"
    raise EngineError(text)


def _last_lines(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    text = " / ".join(line.strip() for line in lines[-3:] if line.strip())
    return text[-600:] or "it printed nothing"


def child_environment(folder: Path) -> dict[str, str]:
    """The environment of the child: the parser finds TensorRT-RTX's libraries by their unversioned names."""
    environment = dict(os.environ)
    if unversioned_links(folder):
        paths = (str(folder), environment.get("LD_LIBRARY_PATH", ""))
        environment["LD_LIBRARY_PATH"] = os.pathsep.join(path for path in paths if path)
    return environment
