"""The child process: read requests from standard input, do them within the limits, write answers to standard output."""

from __future__ import annotations

import marshal
import os
import resource
import signal
import sys
from collections.abc import Callable
from typing import BinaryIO

from hybridge.artifact.errors import HybridgeError
from hybridge.runtime.sandbox.process import LENGTH_BYTES, NO_MEMORY, REFUSED, RESULT

Job = Callable[..., bytes]


def main() -> None:
    """Serve until standard input ends. Arguments: bytes of memory, seconds of each request."""
    memory, seconds = int(sys.argv[1]), float(sys.argv[2])
    requests, answers = sys.stdin.buffer, sys.stdout.buffer
    for name, value in ((resource.RLIMIT_AS, memory), (resource.RLIMIT_CORE, 0), (resource.RLIMIT_FSIZE, 0)):
        resource.setrlimit(name, (value, value))
    while (request := _read_request(requests)) is not None:
        # The unhandled signal of the timer ends the process, in native code too.
        signal.setitimer(signal.ITIMER_PROF, seconds)
        kind, payload = _answer(request)
        signal.setitimer(signal.ITIMER_PROF, 0)
        try:
            frame = (1 + len(payload)).to_bytes(LENGTH_BYTES, "little") + kind + payload
        except MemoryError:
            frame = (1).to_bytes(LENGTH_BYTES, "little") + NO_MEMORY
        answers.write(frame)
        answers.flush()


def _read_request(requests: BinaryIO) -> bytes | None:
    head = requests.read(LENGTH_BYTES)
    return requests.read(int.from_bytes(head, "little")) if len(head) == LENGTH_BYTES else None


def _answer(request: bytes) -> tuple[bytes, bytes]:
    try:
        name, *arguments = marshal.loads(request)
        return RESULT, _job(name)(*arguments)
    except MemoryError:
        return NO_MEMORY, b""
    except HybridgeError as error:
        return REFUSED, f"{type(error).__name__}:{error}".encode("utf-8", "replace")


def _job(name: str) -> Job:
    # Imported on demand: a child loads only what its own jobs need.
    if name.startswith("render"):
        from hybridge.runtime.sandbox import templates

        return getattr(templates, name)
    if name in ("load_vocabulary", "check_grammar"):
        from hybridge.runtime.sandbox import grammar

        return getattr(grammar, f"{name}_job")
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    from hybridge.runtime.sandbox import tokenizer

    return getattr(tokenizer, f"{name}_job")
