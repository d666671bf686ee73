"""TensorRT's engine inspector, in its own process: loading an engine needs a GPU and may end the process."""

from __future__ import annotations

import importlib.util
import json
import subprocess
from pathlib import Path
from typing import Any

from hybridge.artifact.child_python import child_command
from hybridge.artifact.untrusted_file import open_inside

# Loading a large engine takes a while.
TIMEOUT_SECONDS = 300

_PROCESS = """
import importlib, json, sys
trt = importlib.import_module(sys.argv[1])
runtime = trt.Runtime(trt.Logger(trt.Logger.ERROR))
engine = runtime.deserialize_cuda_engine(sys.stdin.buffer.read())
if engine is None:
    sys.exit("the engine was not built for this GPU and this version of TensorRT")
text = engine.create_engine_inspector().get_engine_information(trt.LayerInformationFormat.JSON)
print("\\n" + json.dumps(json.loads(text)))
"""


def inspector_view(engine: Path, library: str) -> dict[str, Any] | str:
    """The report of ``library``'s (a TensorRT module's) inspector on ``engine``, or why there is none."""
    from hybridge.trt_plugins.build.capability import local_capability

    if local_capability() is None:
        return "no GPU on this machine"
    if importlib.util.find_spec(library) is None:
        return f"the Python module {library} is not installed"
    return run_inspector(engine, library)


def run_inspector(engine: Path, library: str) -> dict[str, Any] | str:
    """As ``inspector_view``, once GPU and library are known to be there."""
    command = child_command(_PROCESS, library)
    try:
        with open_inside(engine.parent, engine.name, None, remedy="build it again") as file:
            result = subprocess.run(
                command, stdin=file, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, errors="replace"
            )
    except subprocess.TimeoutExpired:
        return f"TensorRT did not load the engine within {TIMEOUT_SECONDS} s"
    if result.returncode != 0:
        lines = [line.strip() for line in result.stderr.splitlines() if line.strip()]
        return lines[-1] if lines else f"TensorRT's process ended with code {result.returncode}"
    view = json.loads(result.stdout.splitlines()[-1])
    return view if isinstance(view, dict) else {"layers": view}
