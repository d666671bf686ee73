"""The option that names an engine; the other commands do without importing engines."""

from __future__ import annotations

from hybridge.cli.parser import ENGINE, Option, Value
from hybridge.runtime.engines.factory import AUTO, ENGINE_NAMES

ENGINE_NAME = Option(
    "--engine",
    help="auto (the best available), onnxruntime, onnxruntime-portable, tensorrt or torch.",
    type=Value(choices=ENGINE_NAMES),
    metavar="NAME",
    default=AUTO,
    group=ENGINE,
)
