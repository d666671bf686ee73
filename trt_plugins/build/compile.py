"""One TensorRT build from a parsed model to the engine file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol, TextIO

from hybridge.artifact.errors import EngineError
from hybridge.trt_plugins.build.build_log import explain, make_logger, out_of_memory
from hybridge.trt_plugins.build.build_progress import TOTAL, make_monitor
from hybridge.trt_plugins.build.job import BuildJob, BuildResult
from hybridge.trt_plugins.build.mapped_weights import pages_released
from hybridge.trt_plugins.build.network import check_float32, layer_counts, parse_network, tensor_summaries
from hybridge.trt_plugins.build.plan_file import PlanFile, build_plan
from hybridge.trt_plugins.build.plugin_layers import check_plugin_layers, state_aliases
from hybridge.trt_plugins.build.tensorrt_library import TensorRTLibrary
from hybridge.trt_plugins.plugins import register_plugins
from hybridge.trt_plugins.plugins.errors import PluginErrors


class BuildListener(Protocol):
    """Receives the build's progress."""

    def stage(self, name: str, total: int | None) -> None:
        """``name`` begins; ``total`` units of it will be reported."""

    def advance(self, amount: int) -> None:
        """``amount`` more units of the stage are done."""


@dataclass(frozen=True)
class ParsedJob:
    """The network of a job, and what it needs to stay valid. ``errors``: those raised in plugins."""

    library: TensorRTLibrary
    logger: Any
    errors: PluginErrors
    builder: Any
    parsed: Any

    @property
    def network(self) -> Any:
        return self.parsed.network


def parse_job(job: BuildJob, model: bytes, log: TextIO, listener: BuildListener) -> ParsedJob:
    """Parse the serialized ``model`` as ``job`` says, and check the network; TensorRT's messages go to ``log``.

    EngineError: TensorRT or a plugin cannot read the graph.
    """
    listener.stage("load TensorRT", None)
    library = TensorRTLibrary(job.library)
    logger = make_logger(library.trt, log)
    log.write(f"{library.name} {library.version}, compute capability {', '.join(job.compute_capabilities)}\n")
    errors = _plugin_errors(library, job, log)
    builder = library.create_builder(logger)
    listener.stage("read the graph", None)
    with errors.raised(any_thread=True):
        parsed = parse_network(library, builder, logger, model, job.model_path)
    check_float32(parsed.network, job.fp32_values)
    check_plugin_layers(parsed.network, job.plugin_nodes)
    return ParsedJob(library, logger, errors, builder, parsed)


def compile_engine(job: BuildJob, model: bytes, log: TextIO, listener: BuildListener) -> BuildResult:
    """Parse the serialized ``model``, build and write ``job``; TensorRT's messages go to ``log``.

    EngineError: TensorRT or a plugin cannot read or build the graph. OSError: a file cannot be read or written.
    """
    found = parse_job(job, model, log, listener)
    library, logger, errors, builder, parsed = found.library, found.logger, found.errors, found.builder, found.parsed
    config = _configured(library, builder, parsed.network, job, logger, listener.advance)
    timing_cache = library.load_timing_cache(config, Path(job.old_timing_cache) if job.old_timing_cache else None)
    aliased = bool(job.plugin_nodes) and job.alias_states and library.alias_plugin_states(config)
    aliases = state_aliases(parsed.network, job.plugin_nodes, job.plugin_version) if aliased else {}
    layers, tensors = layer_counts(parsed.network), tensor_summaries(parsed.network, aliases)
    listener.stage("build the engine", TOTAL)
    plan = PlanFile(Path(job.engine))
    with errors.raised(any_thread=True), pages_released(Path(job.model_path).parent):
        built = build_plan(library.trt, builder, parsed.network, config, plan)
        plan.close()
        if not built:
            hint = "; `plugin_states='separate'` may build" if aliased and not out_of_memory(logger.errors) else ""
            raise EngineError(
                f"{library.name} {library.version} cannot build the engine: {explain(logger.errors)}{hint}"
            )
    library.save_timing_cache(timing_cache, Path(job.timing_cache))
    summaries = [asdict(tensor) for tensor in tensors]
    return BuildResult(library.version, plan.nbytes, plan.sha256, layers, summaries, aliased, logger.scratch_bytes)


def _plugin_errors(library: TensorRTLibrary, job: BuildJob, log: TextIO) -> PluginErrors:
    """Register the plugins that the job needs; returns the record of their errors."""
    if not job.plugin_nodes:
        log.write(f"no plugins: {job.plugins_off}\n")
        return PluginErrors()
    log.write(f"plugins: {', '.join(dict.fromkeys(job.plugin_nodes.values()))}\n")
    return register_plugins(library.trt).errors


def _configured(
    library: TensorRTLibrary,
    builder: Any,
    network: Any,
    job: BuildJob,
    logger: Any,
    advance: Callable[[int], None],
) -> Any:
    trt = library.trt
    config = builder.create_builder_config()
    library.set_targets(config, job.compute_capabilities, job.hardware_compatible)
    library.use_full_float32(config)
    if job.workspace_mib is not None:
        config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, job.workspace_mib << 20)
    if job.optimization_level is not None:
        config.builder_optimization_level = job.optimization_level
    config.progress_monitor = make_monitor(trt, advance)
    for name, shapes in job.profiles.items():
        profile = builder.create_optimization_profile()
        for index in range(network.num_inputs):
            tensor = network.get_input(index)
            profile.set_shape(tensor.name, *(tuple(shape) for shape in shapes[tensor.name]))
        if config.add_optimization_profile(profile) < 0:
            raise EngineError(
                f"{library.name} {library.version} refuses the profile {name!r}: {explain(logger.errors)}"
            )
    return config
