"""The network that TensorRT-RTX parses from an artifact, in this process."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hybridge.trt_plugins.build.build_log import make_logger
from hybridge.trt_plugins.build.model import ParserModel
from hybridge.trt_plugins.build.network import parse_network
from hybridge.trt_plugins.build.tensorrt_library import TensorRTLibrary


@contextmanager
def parsed_network(artifact: Path, model: ParserModel) -> Iterator[Any]:
    """The network of ``model``, whose weights lie in ``artifact``; valid inside the block."""
    library = TensorRTLibrary("tensorrt_rtx")
    logger = make_logger(library.trt, io.StringIO())
    builder = library.create_builder(logger)
    parsed = parse_network(library, builder, logger, model.serialized, str(artifact / "model.onnx"))
    yield parsed.network
    # A network must not outlive its builder.
    del parsed, builder
