"""The building process: one job in, messages out.

Standard input holds the job (one line of JSON) and the model (all bytes after it).
TensorRT runs in its own process, so that a crash of native code, its prints and its memory stay there.
Messages on standard output: {"stage", "total"}, {"advance"}, {"result"} and {"error", "kind", "errno"}.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import warnings
from dataclasses import asdict
from typing import Any, TextIO

from hybridge.artifact.errors import HybridgeError
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
            # The parent is gone; unwinding through TensorRT's callbacks is not possible.
            os._exit(1)

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
    job, model = BuildJob(**json.loads(sys.stdin.buffer.readline())), sys.stdin.buffer.read()
    try:
        if job.constants is None:
            result = asdict(compile_engine(job, model, sys.stderr, channel))
        else:
            result = describe_network(job, model, sys.stderr, channel).as_json()
    except HybridgeError as error:
        channel.send(error=str(error), kind=ERROR_KIND)
    except OSError as error:
        channel.send(error=str(error), kind=OS_ERROR_KIND, errno=error.errno)
    else:
        channel.send(result=result)
    sys.stderr.flush()
    # TensorRT's destructors take seconds with large graphs; nothing is left to write.
    os._exit(0)
