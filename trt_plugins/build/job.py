"""Requests to the building process and its answers, both as JSON."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class BuildJob:
    """One build. Paths are absolute; sizes count MiB; profiles map a profile to {input: [min, opt, max]}.

    model_path: the model.onnx whose folder has the weights (the model to parse is sent together with the job).
    fp32_values: values of the graph that must be float32 in the network.
    engine: the file to write; timing_cache: the file to write, seeded from old_timing_cache.
    plugin_nodes: name to operator of the nodes that have to become plugins; where none does, plugins_off says why.
    alias_states: plugins update states in place where TensorRT can. plugin_version: of their operators' domain.
    constants: build no engine, but describe the network, and write its constants to this file.
    scratch: folders that are removed if the process dies that waits for the build.
    """

    library: str
    model_path: str
    compute_capabilities: list[str]
    hardware_compatible: bool
    profiles: dict[str, dict[str, list[list[int]]]]
    fp32_values: list[str]
    workspace_mib: int | None
    optimization_level: int | None
    engine: str
    timing_cache: str
    old_timing_cache: str | None
    plugin_nodes: dict[str, str] = field(default_factory=dict)
    plugins_off: str = ""
    alias_states: bool = True
    plugin_version: int = 1
    constants: str | None = None
    scratch: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class TensorSummary:
    """One input or output of the network. ``aliases``: the input that an output shares its memory with."""

    name: str
    mode: str
    dtype: str
    aliases: str | None


@dataclass(frozen=True)
class BuildResult:
    """One built engine: its file, and what the parsed network held (layer type -> count).

    plugins_aliased: the plugins update their states in place. scratch_bytes: device memory of its activations.
    """

    library_version: str
    nbytes: int
    sha256: str
    layers: dict[str, int]
    tensors: list[dict[str, Any]]
    plugins_aliased: bool = False
    scratch_bytes: int = 0

    def summaries(self) -> list[TensorSummary]:
        return [TensorSummary(**tensor) for tensor in self.tensors]
