"""Parameters of the Python API under the names that a user of the command line knows."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

from hybridge.artifact.errors import HybridgeError


def flags_of(*parameters: str) -> dict[str, str]:
    """``parameters`` whose flags are spelled like them: max_new_tokens is --max-new-tokens."""
    return {name: "--" + name.replace("_", "-") for name in parameters}


@contextlib.contextmanager
def naming_flags(flags: Mapping[str, str]) -> Iterator[None]:
    """A HybridgeError of the block that begins with a parameter's name ("seed: ...") begins with its flag instead."""
    try:
        yield
    except HybridgeError as error:
        name, colon, rest = str(error).partition(":")
        if not colon or name not in flags:
            raise
        raise type(error)(f"{flags[name]}:{rest}") from error
