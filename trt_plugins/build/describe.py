"""Parses the TensorRT network of a job as its build would, and describes it."""

from __future__ import annotations

from pathlib import Path
from typing import TextIO

from hybridge.trt_plugins.build.compile import BuildListener, parse_job
from hybridge.trt_plugins.build.job import BuildJob
from hybridge.trt_plugins.network.description import NetworkDescription
from hybridge.trt_plugins.network.reader import read_network


def describe_network(job: BuildJob, model: bytes, log: TextIO, listener: BuildListener) -> NetworkDescription:
    """Parse the serialized ``model`` as ``job`` says and describe the network; its constants go to ``job.constants``.

    EngineError: TensorRT or a plugin cannot read the graph. OSError: the file cannot be written.
    """
    assert job.constants is not None
    found = parse_job(job, model, log, listener)
    listener.stage("describe the network", None)
    with Path(job.constants).open("wb") as constants:
        return read_network(found.library.trt, found.network, constants)
