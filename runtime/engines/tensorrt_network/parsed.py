"""The network of an artifact, as `hybridge build-engine` would hand it to TensorRT, ready to be computed."""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hybridge.artifact.bindings import Binding
from hybridge.artifact.config import CONFIG_FILE, RuntimeConfig, read_config
from hybridge.artifact.engine_record import ProfileRecord
from hybridge.artifact.errors import EngineError
from hybridge.artifact.path_kind import MODEL_FILE
from hybridge.artifact.progress import NoProgress
from hybridge.runtime.engines.tensorrt_network.aliases import find_hazards
from hybridge.runtime.engines.tensorrt_network.constants import load_constants
from hybridge.runtime.engines.tensorrt_network.enqueued import plugin_kind
from hybridge.runtime.engines.tensorrt_network.interpreter import NetworkInterpreter
from hybridge.runtime.engines.tensorrt_network.plugins import PLUGIN_KIND
from hybridge.runtime.engines.tensorrt_network.profile_shapes import check_profile_shapes
from hybridge.trt_plugins.build.advance_engine import ADVANCE, advance_bindings, advance_job, advance_profile
from hybridge.trt_plugins.build.build_plan import BuildPlan, plan_build
from hybridge.trt_plugins.build.child import run_description
from hybridge.trt_plugins.build.job import BuildJob, TensorSummary
from hybridge.trt_plugins.build.options import BuildOptions
from hybridge.trt_plugins.build.record import engine_bindings
from hybridge.trt_plugins.build.target import TENSORRT_RTX
from hybridge.trt_plugins.network.description import PLUGIN, NetworkDescription

# TensorRT-RTX parses for a given GPU, which need not exist here; this one supports all types and plugins.
_PRESET = "rtx-ada"
STEP = "step"


@dataclass(frozen=True)
class ParsedArtifact:
    """``network``: computes a step; plugins_off: the reason if it has no plugins.

    advance: for rollback by replay, the network that advances states; stored: its inputs from a step, which are outputs
    of ``network`` after those of config.json.
    """

    plan: BuildPlan
    plugins_off: str
    network: NetworkInterpreter
    stored: tuple[Binding, ...] = ()
    advance: NetworkInterpreter | None = None

    @property
    def uses_plugins(self) -> bool:
        """Whether the network has plugin layers."""
        return any(layer.kind == PLUGIN for layer in self.network.description.layers)

    @property
    def notes(self) -> tuple[str, ...]:
        """A note on why the network has no plugins; none if it has some or they were switched off."""
        if self.uses_plugins or self.plan.options.plugins == "off":
            return ()
        return (f"the network has only native layers: {self.plugins_off}",)


def network_options(config: RuntimeConfig, **options: object) -> BuildOptions:
    """Build options for all rows and tokens of an artifact with ``config``; ``options``: further ones."""
    rtx = importlib.util.find_spec(TENSORRT_RTX) is not None
    target = {"target": _PRESET, "library": TENSORRT_RTX} if rtx else {}
    sizes = {"max_batch_size": config.max_batch_size, "max_seq_len": config.max_seq_len}
    return BuildOptions(**{**target, **sizes, **options})  # type: ignore[arg-type]


def parse_artifact(
    folder: Path,
    widen: bool = False,
    config_file: str = CONFIG_FILE,
    model_file: str = MODEL_FILE,
    **options: object,
) -> ParsedArtifact:
    """Parse a graph of the artifact ``folder`` with the ``options`` of a build.

    EngineError: TensorRT cannot read it, the network's bindings differ from config.json, a read of a state is not
    ordered before or after its update, or shapes do not fit at the ends of the profiles. Other errors as in
    ``plan_build`` and ``BuildPlan.parser_model``.
    """
    plan = plan_build(folder, network_options(read_config(folder, config_file), **options), config_file, model_file)
    model = plan.parser_model()
    plan = plan.fitted(model)
    with tempfile.TemporaryDirectory(prefix="hybridge-") as scratch:
        place = Path(scratch)
        job = plan.job(model, place, place)
        inputs, outputs = plan.config.bindings.inputs, [*plan.config.bindings.outputs, *model.stored]
        network = _interpreter(job, model.serialized, place / STEP, plan, [*inputs, *outputs], widen)
        check_profile_shapes(network, inputs, outputs, plan.profiles)
        if model.advance is None:
            return ParsedArtifact(plan, model.plugins.reason, network, model.stored)
        bindings = advance_bindings(plan.config, model.stored)
        profile: ProfileRecord = advance_profile(bindings, plan.profiles)
        job = advance_job(job, model.advance, profile, place)
        advance = _interpreter(job, model.advance.serialized, place / ADVANCE, plan, bindings, widen)
        check_profile_shapes(advance, bindings, bindings, [profile])
    return ParsedArtifact(plan, model.plugins.reason, network, model.stored, advance)


def _interpreter(
    job: BuildJob, model: bytes, constants: Path, plan: BuildPlan, declared: Sequence[Binding], widen: bool
) -> NetworkInterpreter:
    # The file stays mapped: no other network may be written to it.
    log = constants.with_suffix(".log")
    description = run_description(replace(job, constants=str(constants)), model, log, NoProgress())
    hazards = find_hazards(description)
    if hazards:
        raise EngineError(f"expected every read of a state before or after its update, found that {hazards[0]}")
    plugins = PLUGIN_KIND if widen else plugin_kind(job)
    network = NetworkInterpreter(description, load_constants(description, constants, widen), widen, plugins)
    engine_bindings(declared, plan.limits, tensor_summaries(description, network.aliases.shared))
    return network


def tensor_summaries(description: NetworkDescription, aliases: Mapping[str, str]) -> list[TensorSummary]:
    """Inputs and outputs of a network as a build records them. ``aliases``: outputs to inputs of the same memory."""
    return [
        *(TensorSummary(n, "input", description.tensors[n].dtype.value, None) for n in description.inputs),
        *(TensorSummary(n, "output", description.tensors[n].dtype.value, aliases.get(n)) for n in description.outputs),
    ]
