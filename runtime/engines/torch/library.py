"""Whether torch is installed. This module imports it only inside its functions."""

from __future__ import annotations

from hybridge.artifact.errors import EngineError
from hybridge.artifact.extras import install_command


def need_torch() -> None:
    """EngineError naming the command that installs torch where it cannot be imported."""
    try:
        import torch  # noqa: F401 (only asks whether it is there, so that other import errors stay visible)
    except ImportError as error:
        raise EngineError(
            f"the torch engine needs the package torch, which cannot be imported ({error}): {install_command('torch')}"
        ) from error


def set_threads(threads: int | None) -> None:
    """Set the CPU threads of torch for the whole process; None leaves them unchanged."""
    if threads is not None:
        import torch

        torch.set_num_threads(threads)
