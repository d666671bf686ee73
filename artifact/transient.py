"""Errors that the same call may not meet again: of the system, of memory or of a GPU, not of the input."""

from __future__ import annotations

# torch's errors, by name because torch is not imported here; its libraries' errors and the CPU's lack of memory have no
# class of their own.
_TYPES = ("OutOfMemoryError", "AcceleratorError")
_MESSAGES = ("CUDA error", "cusolver error", "DefaultCPUAllocator")


def is_transient(error: BaseException) -> bool:
    """Whether ``error``, or an error that caused it, is the system's (a full disk), or of memory or a GPU."""
    cause: BaseException | None = error
    while cause is not None:
        # Libraries raise OSError without a number for files that they cannot use.
        if isinstance(cause, OSError) and cause.errno is not None:
            return True
        if isinstance(cause, MemoryError) or is_torch_device_error(cause):
            return True
        cause = cause.__cause__
    return False


def is_torch_device_error(error: BaseException) -> bool:
    """Whether ``error`` is one of torch about a GPU or about too little memory."""
    if not isinstance(error, RuntimeError):
        return False
    names = [kind.__name__ for kind in type(error).__mro__]
    return any(name in names for name in _TYPES) or any(text in str(error) for text in _MESSAGES)
