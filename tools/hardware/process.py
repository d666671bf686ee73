"""Runs the steps of a form in a separate process, so that a crash or hang of native code fails only one step."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from hardware.forms import FORMS
from hardware.steps import BUILD, FAILED, SKIPPED, run_steps
from hardware.subject import Subject
from hybridge.artifact.child_python import child_command

_COMMAND = "from hardware.process import main; main()"
_BEGUN = "begun"


def run_isolated(subject: Subject, names: Sequence[str], deadline: float) -> Iterator[dict[str, Any]]:
    """Records of the steps ``names``; a process that dies fails its step, and the next step gets another process.

    deadline: by ``time.monotonic``. The step running then fails, and later ones are skipped.
    """
    left = list(names)
    while left:
        if time.monotonic() >= deadline:
            yield from (_record(name, SKIPPED, reason="out of time") for name in left)
            return
        for record in _one_process(subject, left, deadline):
            left.remove(record["step"])
            yield record
            if record["step"] == BUILD and record["status"] == FAILED:
                yield from (_record(name, SKIPPED, reason="the build failed") for name in left)
                return


def _one_process(subject: Subject, names: Sequence[str], deadline: float) -> Iterator[dict[str, Any]]:
    """The records of one process; if it dies in a step, that step's record is made here."""
    request = {"artifact": str(subject.artifact), "form": subject.form.name}
    request |= {"max_batch": subject.max_batch, "max_seq_len": subject.max_seq_len, "steps": list(names)}
    with tempfile.TemporaryFile() as log, _started(log) as child:
        timer = threading.Timer(max(0.0, deadline - time.monotonic()), child.kill)
        timer.start()
        try:
            assert child.stdin is not None and child.stdout is not None
            with suppress(BrokenPipeError), child.stdin:
                child.stdin.write(json.dumps(request).encode())
            running, started, ended = names[0], time.monotonic(), ""
            for line in child.stdout:
                message = json.loads(line)
                if _BEGUN in message:
                    running, started = message[_BEGUN], time.monotonic()
                else:
                    ended = message["step"]
                    yield message
            child.wait()
            if running != ended:
                late = time.monotonic() >= deadline
                error = "expected the step to end in time, it did not" if late else _death(child.returncode, log)
                yield _record(running, FAILED, seconds=round(time.monotonic() - started, 3), error=error)
        finally:
            timer.cancel()
            child.kill()


def _started(log: IO[bytes]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(child_command(_COMMAND), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log.fileno())


def _death(code: int, log: IO[bytes]) -> str:
    how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    log.seek(0)
    lines = [line.strip() for line in log.read().decode(errors="replace").splitlines() if line.strip()]
    return f"the process died ({how}): {' / '.join(lines[-3:])[-600:] or 'it printed nothing'}"


def _record(name: str, status: str, **found: Any) -> dict[str, Any]:
    return {"step": name, "status": status, "seconds": 0.0, **found}


def main() -> None:
    """Run the request on standard input; everything that native code prints goes to standard error."""
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    request = json.load(sys.stdin)
    form = FORMS[request["form"]]
    subject = Subject(Path(request["artifact"]), form, request["max_batch"], request["max_seq_len"])

    def send(message: dict[str, Any]) -> None:
        channel.write(json.dumps(message) + "\n")
        channel.flush()

    for record in run_steps(subject, request["steps"], lambda name: send({_BEGUN: name})):
        send(record)
    # TensorRT's clean-up at exit is not part of a step.
    os._exit(0)
