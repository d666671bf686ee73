"""Start this Python in a child process that ignores the current folder and PYTHON* variables."""

from __future__ import annotations

import json
import os
import sys

from hybridge.artifact.errors import EngineError

_PATHS = "import json, sys; sys.path[:] = json.loads(sys.argv.pop(1))\n"


def child_command(code: str, *arguments: str) -> list[str]:
    """The command that runs ``code`` in a child process; it finds ``arguments`` in sys.argv[1:].

    -I keeps the current folder and PYTHON* variables out, and the parent's sys.path is handed over in their place:
    the child imports what its parent would, also from a folder that contains a json.py.
    EngineError: this program has no Python interpreter that it could start.
    """
    if not sys.executable:
        raise EngineError(
            "expected a Python interpreter for a child process (sys.executable), found none: run this with python"
        )
    paths = json.dumps([os.path.abspath(path) for path in sys.path])
    return [sys.executable, "-I", "-c", _PATHS + code, paths, *arguments]
