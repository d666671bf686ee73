"""The second engine of a build with replay: it advances the states by the accepted draft tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from hybridge.artifact.bindings import Binding
from hybridge.artifact.config import RuntimeConfig
from hybridge.artifact.engine_record import AdvanceRecord, ProfileRecord
from hybridge.artifact.names import INPUT_IDS, NUM_ACCEPTED_TOKENS, QUERY_START_LOC, STATE_INDICES
from hybridge.artifact.paged import TOKENS
from hybridge.trt_plugins.build.job import BuildJob, BuildResult
from hybridge.trt_plugins.build.model import ParserModel
from hybridge.trt_plugins.build.profiles import DECODE, Limits
from hybridge.trt_plugins.build.record import engine_bindings

ADVANCE = "advance"
ADVANCE_FILE, ADVANCE_LOG_FILE = f"{ADVANCE}.engine", f"{ADVANCE}.log"


def advance_bindings(config: RuntimeConfig, stored: Sequence[Binding]) -> list[Binding]:
    """Inputs, then outputs, of the engine that advances the states; ``config`` has the bindings of the step's."""
    rows = [config.bindings.input(name) for name in (QUERY_START_LOC, STATE_INDICES, NUM_ACCEPTED_TOKENS)]
    states = [binding for binding in config.bindings.states if not binding.grows]
    return [*rows, *stored, *states, *(config.bindings.output(str(state.replaced_by)) for state in states)]


def advance_profile(bindings: Sequence[Binding], profiles: Sequence[ProfileRecord]) -> ProfileRecord:
    """The shapes of a decode step: its rows, its tokens and its pools."""
    decode = next(profile.shapes for profile in profiles if profile.name == DECODE)
    tokens = [shape[0] for shape in decode[INPUT_IDS]]
    inputs = [binding for binding in bindings if binding.name in decode or TOKENS in binding.shape]
    return ProfileRecord(
        ADVANCE,
        {b.name: decode.get(b.name) or [list(b.resolve(**{TOKENS: count})) for count in tokens] for b in inputs},
    )


def advance_job(step: BuildJob, model: ParserModel, profile: ProfileRecord, folder: Path) -> BuildJob:
    """The build of the second engine, for the same target as ``step``."""
    return replace(
        step,
        profiles={profile.name: profile.shapes},
        fp32_values=list(model.fp32_values),
        engine=str(folder / ADVANCE_FILE),
        timing_cache=str(folder / f"{ADVANCE}.timing.cache"),
        plugin_nodes=model.plugins.nodes,
    )


def advance_record(
    bindings: Sequence[Binding], profile: ProfileRecord, limits: Limits, result: BuildResult
) -> AdvanceRecord:
    """The entry of the second engine in engine.json; EngineError if its network has other bindings."""
    entries = engine_bindings(bindings, limits, result.summaries())
    return AdvanceRecord(
        ADVANCE_FILE, result.nbytes, result.sha256, [profile], entries, result.layers, result.scratch_bytes
    )
