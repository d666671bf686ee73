"""The building process: one job in, messages out.

Standard input holds the job (one line of JSON) and the model (``model_bytes`` after it). It stays open until the build
is done: if it ends before, the reader of the messages was killed, and what the build has written is removed.
TensorRT runs in its own process, so that a crash of native code, its prints and its memory stay there.
Messages on standard output: {"stage", "total"}, {"advance"}, {"result"} and {"error", "kind", "errno"}.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import threading
import warnings
from dataclasses import asdict
from typing import Any, TextIO

from hybridge.artifact.errors import HybridgeError
from hybridge.trt_plugins.build.build_log import HOST_MEMORY_ADVICE
from hybridge.trt_plugins.build.compile import compile_engine
from hybridge.trt_plugins.build.describe import describe_network
from hybridge.trt_plugins.build.job import BuildJob

ERROR_KIND, OS_ERROR_KIND = "build", "os"


class MessageChannel:
    """Sends the messages; the process ends when their reader is gone."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def send(self, **message: Any) -> None:
        """One message."""
        try:
            self._stream.write(json.dumps(message) + "\n")
            self._stream.flush()
        except BrokenPipeError:
            # The parent is gone, and ``_end_with_parent`` ends this process; TensorRT's callbacks cannot be unwound.
            threading.Event().wait()

    def stage(self, name: str, total: int | None) -> None:
        """A stage begins."""
        self.send(stage=name, total=total)

    def advance(self, amount: int) -> None:
        """Progress of the stage."""
        self.send(advance=amount)


def main() -> None:
    """Run the job on standard input; everything that native code prints goes to standard error, which is the log."""
    # Ctrl-C reaches the whole process group; the parent decides what happens.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    warnings.simplefilter("ignore", DeprecationWarning)
    channel = MessageChannel(os.fdopen(os.dup(1), "w", encoding="utf-8"))
    os.dup2(2, 1)
    request = json.loads(sys.stdin.buffer.readline())
    job, model = BuildJob(**request["job"]), sys.stdin.buffer.read(request["model_bytes"])
    threading.Thread(target=_end_with_parent, args=(job.scratch,), daemon=True).start()
    try:
        if job.constants is None:
            result = asdict(compile_engine(job, model, sys.stderr, channel))
        else:
            result = describe_network(job, model, sys.stderr, channel).as_json()
    except HybridgeError as error:
        channel.send(error=str(error), kind=ERROR_KIND)
    except MemoryError:
        channel.send(error=f"memory has run out: {HOST_MEMORY_ADVICE}", kind=ERROR_KIND)
    except OSError as error:
        channel.send(error=str(error), kind=OS_ERROR_KIND, errno=error.errno)
    else:
        channel.send(result=result)
    sys.stderr.flush()
    # TensorRT's destructors take seconds with large graphs; nothing is left to write.
    os._exit(0)


def _end_with_parent(scratch: list[str]) -> None:
    """Wait for the end of standard input; then remove the folders ``scratch`` and end the process."""
    os.read(0, 1)
    for folder in scratch:
        shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)
