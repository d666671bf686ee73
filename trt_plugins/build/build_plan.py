"""A build's decisions before TensorRT runs: target, limits, profiles, plugins, and the job of the build process."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from hybridge.artifact.config import CONFIG_FILE, MTP_CONFIG_FILE, MTP_MODEL_FILE, RuntimeConfig, read_config
from hybridge.artifact.engine_record import ProfileRecord
from hybridge.artifact.errors import SettingError
from hybridge.artifact.paged import PAGED
from hybridge.artifact.path_kind import require_artifact
from hybridge.artifact.untrusted_file import has_file
from hybridge.trt_plugins.build.job import BuildJob
from hybridge.trt_plugins.build.model import MODEL_FILE, ParserModel, parser_model
from hybridge.trt_plugins.build.options import REPLAY, SNAPSHOT, BuildOptions
from hybridge.trt_plugins.build.plugin_choice import choose_plugins
from hybridge.trt_plugins.build.profiles import Limits, engine_limits, engine_profiles
from hybridge.trt_plugins.build.target import Target, check_dtype, choose_target, this_machine
from hybridge.trt_plugins.rewrites.draft_slots import DraftSlots
from hybridge.trt_plugins.rewrites.hidden_states import HiddenForm, exported_head

PLAN_FILE, TIMING_CACHE_FILE = "model.engine", "timing.cache"


@dataclass(frozen=True)
class BuildPlan:
    """``exported``: what the exported graph has, ``config``: what that of the engine has, which differs by slots for
    draft tokens and by hidden states."""

    artifact: Path
    options: BuildOptions
    exported: RuntimeConfig
    config: RuntimeConfig
    target: Target
    limits: Limits
    profiles: list[ProfileRecord]
    drafts: DraftSlots | None
    model_file: str = MODEL_FILE
    hidden: HiddenForm = HiddenForm.NONE

    def parser_model(self) -> ParserModel:
        """The graph for TensorRT's parser; errors as in ``model.parser_model``."""
        choose = partial(choose_plugins, options=self.options, target=self.target, profiles=self.profiles)
        limit = self.limits.max_seq_len
        return parser_model(self.artifact, self.exported, limit, choose, self.drafts, self.model_file, self.hidden)

    def fitted(self, model: ParserModel) -> BuildPlan:
        """The plan for ``model``: native layers copy pools in scratch memory, so that theirs have to be small."""
        if self.config.layout != PAGED or model.plugins.nodes:
            return self
        rows, drafts = self.limits.max_batch_size, self.options.speculative_tokens
        return replace(self, profiles=engine_profiles(self.config, self.target.preset, self.limits, drafts, rows))

    def job(self, model: ParserModel, folder: Path, previous: Path, scratch: Path | None = None) -> BuildJob:
        """The build of ``model`` into the temporary ``folder``; ``previous``: the engine's folder of the last build.

        scratch: the folder to remove if this process dies, by default ``folder``.
        """
        preset, level = self.target.preset, self.options.optimization_level
        return BuildJob(
            library=self.target.library,
            model_path=str(self.artifact.resolve() / self.model_file),
            compute_capabilities=list(self.target.compute_capabilities),
            hardware_compatible=self.target.hardware_compatible,
            profiles={profile.name: profile.shapes for profile in self.profiles},
            fp32_values=list(model.fp32_values),
            workspace_mib=self.options.workspace_mib or preset.workspace_mib,
            optimization_level=preset.optimization_level if level is None else level,
            engine=str(folder / PLAN_FILE),
            timing_cache=str(folder / TIMING_CACHE_FILE),
            old_timing_cache=str(previous / TIMING_CACHE_FILE),
            plugin_nodes=model.plugins.nodes,
            plugins_off=model.plugins.reason,
            alias_states=model.plugins.aliased,
            plugin_version=model.plugins.version,
            scratch=[str(scratch or folder)],
        )


def plan_build(
    artifact: Path, options: BuildOptions, config_file: str = CONFIG_FILE, model_file: str = MODEL_FILE
) -> BuildPlan:
    """The build of ``model_file`` of the folder ``artifact`` with ``options`` on this machine.

    ArtifactError: the artifact is missing or damaged. UnsupportedError: options or a target that cannot be honoured.
    SettingError: options that the artifact does not allow. EngineError: no usable TensorRT.
    """
    require_artifact(artifact)
    config = read_config(artifact, config_file)
    hidden = HiddenForm.SHOWN if builds_head(artifact, config, options) else HiddenForm.NONE
    if config_file == MTP_CONFIG_FILE:
        config, hidden = exported_head(config), HiddenForm.READ
    target = choose_target(options, this_machine())
    check_dtype(target, config.dtype)
    limits = engine_limits(config, target.preset, options)
    drafts = _draft_slots(config, options)
    stepped = config if drafts is None else replace(config, bindings=drafts.bindings(config.bindings))
    stepped = hidden.config(stepped)
    profiles = engine_profiles(stepped, target.preset, limits, options.speculative_tokens)
    return BuildPlan(artifact, options, config, stepped, target, limits, profiles, drafts, model_file, hidden)


def plan_head(artifact: Path, options: BuildOptions) -> BuildPlan:
    """The build of the artifact's prediction head, which has no recurrent states; as ``plan_build``."""
    return plan_build(artifact, replace(options, draft_states=SNAPSHOT), MTP_CONFIG_FILE, MTP_MODEL_FILE)


def builds_head(artifact: Path, config: RuntimeConfig, options: BuildOptions) -> bool:
    """Whether the engine of the model is to show hidden states, and one of the artifact's prediction head is built."""
    requested = options.mtp and options.speculative_tokens > 0 and config.layout == PAGED
    return requested and has_file(artifact, MTP_CONFIG_FILE)


def _draft_slots(config: RuntimeConfig, options: BuildOptions) -> DraftSlots | None:
    """The slots that the graph gets for draft tokens; None without recurrent states or draft tokens.

    SettingError: the artifact does not support draft tokens, or there is nothing to replay.
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
