"""Builds the TensorRT engine of an artifact.

An engine lives inside the artifact, in a folder named after its target, and is written atomically:

    OUT/engines/<target>/model.engine   the serialized engine
    OUT/engines/<target>/engine.json    what it holds (artifact.engine_record)
    OUT/engines/<target>/build.log      TensorRT's messages
    OUT/engines/<target>.failed.log     what build.log would be, where the last build of the target failed
    OUT/engines/<target>/advance.engine, advance.log   with --draft-states replay: the engine that advances states
    OUT/engines/<target>/timing.cache   kernel times, with full TensorRT only; reused by the next build

<target> is the preset's name; "sm86" or "<preset>-sm86" when --compute-capability replaces the preset's.
A binding in engine.json has name, mode ("input" or "output"), dtype and shape ("batch" and "seq" are dynamic);
a state input names in ``replaced_by`` the output that is its next value, and an output names in ``aliases`` the
input whose memory it must share. A state whose output has no ``aliases`` needs two buffers that swap roles.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

from hybridge.artifact.config import RuntimeConfig, read_config
from hybridge.artifact.engine_record import (
    ENGINE_FILE,
    ENGINES_FOLDER,
    AdvanceRecord,
    EngineRecord,
    ProfileRecord,
    write_engine_record,
)
from hybridge.artifact.errors import SettingError
from hybridge.artifact.folder import ENGINE, atomic_folder, check_output
from hybridge.artifact.paged import PAGED
from hybridge.artifact.path_kind import require_artifact
from hybridge.artifact.progress import NoProgress, Progress
from hybridge.trt_plugins.build.advance_engine import (
    ADVANCE_LOG_FILE,
    advance_bindings,
    advance_job,
    advance_profile,
    advance_record,
)
from hybridge.trt_plugins.build.child import run_job
from hybridge.trt_plugins.build.failed_log import failed_log_path, saved_log
from hybridge.trt_plugins.build.job import BuildJob
from hybridge.trt_plugins.build.model import MODEL_FILE, ParserModel, parser_model
from hybridge.trt_plugins.build.options import REPLAY, BuildOptions
from hybridge.trt_plugins.build.plugin_choice import choose_plugins
from hybridge.trt_plugins.build.profiles import Limits, engine_limits, engine_profiles
from hybridge.trt_plugins.build.record import PLAN_FILE, engine_bindings, engine_record
from hybridge.trt_plugins.build.target import Target, check_dtype, choose_target, this_machine
from hybridge.trt_plugins.rewrites.draft_slots import DraftSlots

LOG_FILE = "build.log"
TIMING_CACHE_FILE = "timing.cache"
DEFAULT_OPTIONS, NO_PROGRESS = BuildOptions(), NoProgress()


def build_engine(
    artifact: Path, options: BuildOptions = DEFAULT_OPTIONS, progress: Progress = NO_PROGRESS
) -> EngineRecord:
    """Build the engine of the folder ``artifact`` and return its record; a failure leaves TensorRT's log at most.

    ArtifactError: the artifact is missing or damaged. UnsupportedError: options or a target that cannot be honoured.
    EngineError: no usable TensorRT, or TensorRT fails. OutputError: the engine exists (and not
    ``options.overwrite``) or cannot be written.
    """
    started = time.perf_counter()
    require_artifact(artifact)
    config = read_config(artifact)
    target = choose_target(options, this_machine())
    check_dtype(target, config.dtype)
    limits = engine_limits(config, target.preset, options)
    drafts = _draft_slots(config, options)
    stepped = config if drafts is None else replace(config, bindings=drafts.bindings(config.bindings))
    profiles = engine_profiles(stepped, target.preset, limits, options.speculative_tokens)
    out = engine_folder(artifact, target.name)
    check_output(out, options.overwrite, ENGINE)
    choose = partial(choose_plugins, options=options, target=target, profiles=profiles)
    model = parser_model(artifact, config, limits.max_seq_len, choose, drafts)
    try:
        with atomic_folder(out, options.overwrite, ENGINE) as folder:
            job = _job(artifact.resolve(), folder.resolve(), out.resolve(), target, options, profiles, model)
            with saved_log(folder / LOG_FILE, failed_log_path(out)):
                result = run_job(job, model.serialized, folder / LOG_FILE, progress)
                declared = (*stepped.bindings.inputs, *stepped.bindings.outputs, *model.stored)
                bindings = engine_bindings(declared, limits, result.summaries())
            with saved_log(folder / ADVANCE_LOG_FILE, failed_log_path(out)):
                advance = _advance(job, model, stepped, limits, profiles, folder, progress)
            seconds = time.perf_counter() - started
            record = engine_record(target, limits, profiles, bindings, result, model, seconds, advance)
            record = replace(record, speculative_tokens=options.speculative_tokens)
            write_engine_record(folder / ENGINE_FILE, record)
    finally:
        progress.finish()
        # Succeeds only where the build left nothing and the artifact has no other engine.
        with contextlib.suppress(OSError):
            out.parent.rmdir()
    return record


def engine_folder(artifact: Path, name: str) -> Path:
    """The folder of the engine that is built for the target ``name``."""
    return artifact / ENGINES_FOLDER / name


def _draft_slots(config: RuntimeConfig, options: BuildOptions) -> DraftSlots | None:
    """The slots that the graph gets for draft tokens; None: none, as it has no states or rows no draft tokens.

    SettingError when the artifact cannot have any, or nothing asks for the states that must be replayed.
    """
    tokens, replays = options.speculative_tokens, options.draft_states == REPLAY
    if tokens and config.layout != PAGED:
        raise SettingError(
            f"speculative_tokens: expected an artifact of layout {PAGED}, found {config.layout}: export with "
            f"`layout={PAGED!r}`, or leave it out"
        )
    if replays and not (tokens and config.recurrent_layers):
        raise SettingError(
            f"draft_states: expected for {REPLAY!r} an artifact with recurrent layers and `speculative_tokens` of at "
            f"least 1, found {len(config.recurrent_layers)} recurrent layers and {tokens}: leave it out"
        )
    return DraftSlots(tokens, replays) if tokens and config.recurrent_layers else None


def _advance(
    step: BuildJob,
    model: ParserModel,
    config: RuntimeConfig,
    limits: Limits,
    profiles: list[ProfileRecord],
    folder: Path,
    progress: Progress,
) -> AdvanceRecord | None:
    """Build the engine that advances the states that ``step`` defers; None where steps defer none."""
    if model.advance is None:
        return None
    bindings = advance_bindings(config, model.stored)
    profile = advance_profile(bindings, profiles)
    job = advance_job(step, model.advance, profile, folder.resolve())
    result = run_job(job, model.advance.serialized, folder / ADVANCE_LOG_FILE, progress)
    return advance_record(bindings, profile, limits, result)


def _job(
    artifact: Path,
    folder: Path,
    previous: Path,
    target: Target,
    options: BuildOptions,
    profiles: list[ProfileRecord],
    model: ParserModel,
) -> BuildJob:
    preset, level = target.preset, options.optimization_level
    return BuildJob(
        library=target.library,
        model_path=str(artifact / MODEL_FILE),
        compute_capabilities=list(target.compute_capabilities),
        hardware_compatible=target.hardware_compatible,
        profiles={profile.name: profile.shapes for profile in profiles},
        fp32_values=list(model.fp32_values),
        workspace_mib=options.workspace_mib or preset.workspace_mib,
        optimization_level=preset.optimization_level if level is None else level,
        engine=str(folder / PLAN_FILE),
        timing_cache=str(folder / TIMING_CACHE_FILE),
        old_timing_cache=str(previous / TIMING_CACHE_FILE),
        plugin_nodes=model.plugins.nodes,
        plugins_off=model.plugins.reason,
        alias_states=model.plugins.aliased,
        plugin_version=model.plugins.version,
    )
