"""A child process with limits of memory and processor time, in which a checkpoint's own code runs."""

from __future__ import annotations

import marshal
import os
import select
import signal
import subprocess
import threading
import time
import weakref
from dataclasses import dataclass
from typing import Any, Final

from hybridge.artifact.child_python import child_command
from hybridge.artifact.errors import ArtifactError, EngineError, RequestError
from hybridge.artifact.limits import MIB

_CODE = "from hybridge.runtime.sandbox.worker import main; main()"
# A request that neither computes nor ends (the machine swaps, the child was stopped) is given up after this multiple
# of its processor time.
_PATIENCE: Final = 12
# Requests and answers are frames: length in bytes (little endian), content. An answer's first byte is its kind.
LENGTH_BYTES: Final = 8
RESULT, REFUSED, NO_MEMORY = b"=", b"!", b"m"


@dataclass(frozen=True)
class ProcessLimits:
    """``seconds`` of processor time and ``request`` bytes for one request, ``memory`` bytes of addresses for all."""

    seconds: float
    memory: int
    request: int


class LimitError(Exception):
    """A request went over a limit or ended the child; the text continues "it needs" (more than 5 s of ...)."""


class LimitedProcess:
    """A child that answers one request at a time, started at the first one and again after it has died.

    ``setup`` is the request that every start begins with. Requests are a job's name and plain data; answers are
    bytes. May be used from several threads. It ends with ``close``, with this object or with this process.
    """

    def __init__(self, limits: ProcessLimits, setup: tuple[Any, ...] | None = None) -> None:
        self._limits, self._setup = limits, setup
        self._lock = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None
        self._owner = 0
        self._release: weakref.finalize[..., LimitedProcess] | None = None

    def call(self, *request: Any) -> bytes:
        """The answer to ``request``; LimitError, or the child's ArtifactError or RequestError.

        EngineError: no child can be started.
        """
        with self._lock:
            self._ensure_started()
            return self._exchange(request)

    def close(self) -> None:
        """End the child; a later call starts another one."""
        with self._lock:
            self._end()

    def _ensure_started(self) -> None:
        if self._child is not None and self._owner == os.getpid():
            return
        # After a fork, the child belongs to the parent: two processes must not talk over one pipe.
        if self._release is not None:
            self._release.detach()
        self._child, self._owner = _start(self._limits), os.getpid()
        self._release = weakref.finalize(self, _end_child, self._child, self._owner)
        if self._setup is not None:
            self._exchange(self._setup)

    def _exchange(self, request: tuple[Any, ...]) -> bytes:
        assert self._child is not None
        content = marshal.dumps(request)
        if len(content) > self._limits.request:
            raise LimitError(f"more than {self._limits.request // MIB} MiB of input")
        try:
            _send(self._child, content)
            answer = _receive(self._child, time.monotonic() + _PATIENCE * self._limits.seconds)
        except (BrokenPipeError, EOFError):
            raise LimitError(self._cause_of_death()) from None
        except BaseException:  # an interrupt too: what is left in the pipe would answer the next request
            self._end()
            raise
        kind, payload = answer[:1], answer[1:]
        if kind == NO_MEMORY:
            self._end()
            raise LimitError(f"more than {self._limits.memory // MIB} MiB of memory")
        if kind == REFUSED:
            name, _, sentence = payload.decode("utf-8", "replace").partition(":")
            raise (RequestError if name == RequestError.__name__ else ArtifactError)(sentence)
        return payload

    def _cause_of_death(self) -> str:
        assert self._child is not None
        code = self._child.wait()
        self._end()
        if code == -signal.SIGPROF:
            return f"more than {self._limits.seconds:g} s of processor time"
        if code < 0:
            # Native code that gets no memory aborts.
            return f"more than {self._limits.memory // MIB} MiB of memory, or it crashes ({_signal_name(-code)})"
        return f"what ends its process (exit code {code})"

    def _end(self) -> None:
        if self._release is not None:
            self._release()
        self._child = self._release = None


def _start(limits: ProcessLimits) -> subprocess.Popen[bytes]:
    command = child_command(_CODE, str(limits.memory), str(limits.seconds))
    try:
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            # Ctrl-C in a terminal is for this process.
            start_new_session=True,
        )
    except OSError as error:
        raise EngineError(
            f"expected to start a process for the checkpoint's own code, found {error.strerror or error}: free memory"
        ) from error


def _end_child(child: subprocess.Popen[bytes], owner: int) -> None:
    if owner != os.getpid():
        return
    child.kill()
    child.wait()
    for pipe in (child.stdin, child.stdout):
        if pipe is not None:
            pipe.close()


def _send(child: subprocess.Popen[bytes], content: bytes) -> None:
    assert child.stdin is not None
    left = memoryview(len(content).to_bytes(LENGTH_BYTES, "little") + content)
    while left:
        left = left[os.write(child.stdin.fileno(), left) :]


def _receive(child: subprocess.Popen[bytes], deadline: float) -> bytes:
    size = int.from_bytes(_read(child, LENGTH_BYTES, deadline), "little")
    return _read(child, size, deadline)


def _read(child: subprocess.Popen[bytes], size: int, deadline: float) -> bytes:
    assert child.stdout is not None
    handle, parts = child.stdout.fileno(), []
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    while size:
        left = deadline - time.monotonic()
        if left <= 0 or not poll.poll(1000 * left):
            raise LimitError("longer than the machine allows: it neither computes nor ends")
        part = os.read(handle, min(size, MIB))
        if not part:
            raise EOFError
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
