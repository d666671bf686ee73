"""TensorRT's log: every line goes to a text stream, errors are kept to explain a failed build."""

from __future__ import annotations

import re
from typing import Any, TextIO

MAX_ERRORS = 20
# Errors of an allocation for the weights, and of the parser that cannot map their file.
_NO_HOST_MEMORY = ("HostBuffer", "Failed to map file to memory")
HOST_MEMORY_ADVICE = (
    "this machine has too little memory for the weights, of which a build holds one copy: end other programs, add "
    "swap, or build the engine on a machine with more (`target` names the GPU that it is for)"
)
_ACTIVATIONS = re.compile(r"Total Activation Memory: (\d+)")


def make_logger(trt: Any, stream: TextIO) -> Any:
    """A ``trt.ILogger`` that writes INFO and more severe lines to ``stream``; ``errors`` keeps the first errors.

    scratch_bytes: device memory of the activations of the profile that needs most, once an engine is built.
    """
    severity = trt.ILogger.Severity
    shown = (severity.INTERNAL_ERROR, severity.ERROR, severity.WARNING, severity.INFO)

    class BuildLogger(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)
            self.errors: list[str] = []
            self.scratch_bytes = 0

        def log(self, level: Any, message: str) -> None:
            if level not in shown:
                return
            if level in shown[:2] and len(self.errors) < MAX_ERRORS:
                self.errors.append(message)
            activations = _ACTIVATIONS.match(message)
            if activations is not None:
                self.scratch_bytes = max(self.scratch_bytes, int(activations[1]))
            stream.write(f"[{level.name}] {message}\n")
            stream.flush()

    return BuildLogger()


def explain(errors: list[str]) -> str:
    """The first error in one line, shortened, with a remedy where one is known."""
    text = " ".join(errors[0].split()) if errors else "no reason given"
    text = text if len(text) <= 600 else text[:597] + "..."
    if any(sign in error for error in errors for sign in _NO_HOST_MEMORY):
        text += f": {HOST_MEMORY_ADVICE}"
    elif out_of_memory(errors):
        text += ": lower the preset's prefill.max_seq or `max_batch_size`, or raise the limit of the workspace"
    return text


def out_of_memory(errors: list[str]) -> bool:
    """Whether TensorRT ran out of memory, on the host or on the device."""
    return any(sign in error for error in errors for sign in ("OutOfMemory", *_NO_HOST_MEMORY))
