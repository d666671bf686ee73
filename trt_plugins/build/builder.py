"""Builds the TensorRT engine of an artifact.

An engine lives inside the artifact, in a folder named after its target, and is written atomically:

    OUT/engines/<target>/model.engine   the serialized engine
    OUT/engines/<target>/engine.json    what it holds (artifact.engine_record)
    OUT/engines/<target>/build.log      TensorRT's messages
    OUT/engines/<target>.failed.log     what build.log would be, where the last build of the target failed
    OUT/engines/<target>/advance.engine, advance.log   with --draft-states replay: the engine that advances states
    OUT/engines/<target>/mtp/ model.engine, engine.json, ...: of the prediction head, with --speculative-tokens
    OUT/engines/<target>/timing.cache   kernel times, with full TensorRT only; reused by the next build

<target> is the preset's name; "sm86" or "<preset>-sm86" when --compute-capability replaces the preset's.
A binding in engine.json has name, mode ("input" or "output"), dtype and shape ("batch" and "seq" are dynamic);
a state input names in ``replaced_by`` the output that is its next value, and an output names in ``aliases`` the
input whose memory it must share. A state whose output has no ``aliases`` needs two buffers that swap roles.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from pathlib import Path

from hybridge.artifact.engine_record import (
    ENGINE_FILE,
    ENGINES_FOLDER,
    HEAD_FOLDER,
    AdvanceRecord,
    EngineRecord,
    write_engine_record,
)
from hybridge.artifact.folder import ENGINE, atomic_folder, check_output
from hybridge.artifact.manifest import check_digest
from hybridge.artifact.progress import NoProgress, Progress
from hybridge.trt_plugins.build.advance_engine import (
    ADVANCE_LOG_FILE,
    advance_bindings,
    advance_job,
    advance_profile,
    advance_record,
)
from hybridge.trt_plugins.build.build_plan import BuildPlan, plan_build, plan_head
from hybridge.trt_plugins.build.child import run_job
from hybridge.trt_plugins.build.failed_log import failed_log_path, saved_log
from hybridge.trt_plugins.build.job import BuildJob
from hybridge.trt_plugins.build.model import ParserModel
from hybridge.trt_plugins.build.options import BuildOptions
from hybridge.trt_plugins.build.record import engine_bindings, engine_record
from hybridge.trt_plugins.rewrites.hidden_states import HiddenForm

LOG_FILE = "build.log"
DEFAULT_OPTIONS, NO_PROGRESS = BuildOptions(), NoProgress()


def build_engine(
    artifact: Path, options: BuildOptions = DEFAULT_OPTIONS, progress: Progress = NO_PROGRESS
) -> EngineRecord:
    """Build the engine of the folder ``artifact`` and return its record; a failure leaves TensorRT's log at most.

    ArtifactError: the artifact is missing or damaged. UnsupportedError: options or a target that cannot be honoured.
    EngineError: no usable TensorRT, or TensorRT fails. OutputError: the engine exists (and not
    ``options.overwrite``) or cannot be written.
    """
    plan = plan_build(artifact, options)
    out = engine_folder(artifact, plan.target.name)
    check_output(out, options.overwrite, ENGINE)
    plans = [EnginePlan.of(plan, "")]
    if plan.hidden is HiddenForm.SHOWN:
        plans.append(EnginePlan.of(plan_head(artifact, options), HEAD_FOLDER))
    try:
        with atomic_folder(out, options.overwrite, ENGINE) as folder:
            record, *_ = [each.build(folder, out, progress) for each in plans]
    finally:
        progress.finish()
        # Succeeds only where the build left nothing and the artifact has no other engine.
        with contextlib.suppress(OSError):
            out.parent.rmdir()
    return record


def engine_folder(artifact: Path, name: str) -> Path:
    """The folder of the engine that is built for the target ``name``."""
    return artifact / ENGINES_FOLDER / name


@dataclass(frozen=True)
class EnginePlan:
    """The build of an engine in the folder ``place`` of that of the target."""

    plan: BuildPlan
    model: ParserModel
    place: str

    @classmethod
    def of(cls, plan: BuildPlan, place: str) -> EnginePlan:
        """The build of ``plan``; errors as in ``BuildPlan.parser_model``, and ArtifactError for a graph that is not
        the exported one."""
        model = plan.parser_model()
        check_digest(plan.artifact, plan.model_file, model.sha256)
        return cls(plan.fitted(model), model, place)

    def build(self, temporary: Path, out: Path, progress: Progress) -> EngineRecord:
        """Write the engine and its record into the folder ``temporary``, which becomes ``out``."""
        started = time.perf_counter()
        plan, model, folder = self.plan, self.model, temporary / self.place
        folder.mkdir(exist_ok=True)
        job = plan.job(model, folder.resolve(), (out / self.place).resolve(), temporary.resolve())
        with saved_log(folder / LOG_FILE, failed_log_path(out)):
            result = run_job(job, model.serialized, folder / LOG_FILE, progress)
            declared = (*plan.config.bindings.inputs, *plan.config.bindings.outputs, *model.stored)
            bindings = engine_bindings(declared, plan.limits, result.summaries())
        with saved_log(folder / ADVANCE_LOG_FILE, failed_log_path(out)):
            advance = _advance(job, model, plan, folder, progress)
        record = engine_record(plan, bindings, result, model, time.perf_counter() - started, advance)
        write_engine_record(folder / ENGINE_FILE, record)
        return record


def _advance(
    step: BuildJob, model: ParserModel, plan: BuildPlan, folder: Path, progress: Progress
) -> AdvanceRecord | None:
    """Build the engine that advances the states that ``step`` defers; None where steps defer none."""
    if model.advance is None:
        return None
    bindings = advance_bindings(plan.config, model.stored)
    profile = advance_profile(bindings, plan.profiles)
    job = advance_job(step, model.advance, profile, folder.resolve())
    result = run_job(job, model.advance.serialized, folder / ADVANCE_LOG_FILE, progress)
    return advance_record(bindings, profile, plan.limits, result)
