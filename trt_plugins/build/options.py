"""Options of an engine build."""

from __future__ import annotations

from dataclasses import dataclass

from hybridge.artifact.engine_record import TENSORRT_LIBRARIES
from hybridge.artifact.settings import check_settings, setting
from hybridge.trt_plugins.build.capability import normal_capability
from hybridge.trt_plugins.build.presets import MOST_WORKSPACE_MIB

PLUGIN_MODES = ("auto", "on", "off")
ALIASED = "aliased"
PLUGIN_STATES = (ALIASED, "separate")
JOINED = "joined"
PLUGIN_MIXERS = (JOINED, "separate")
SNAPSHOT, REPLAY = DRAFT_STATES = ("snapshot", "replay")
MOST_SPECULATIVE_TOKENS = 15
_TARGET, _PLUGINS, _SPECULATION, _BUILD, _OUTPUT = "Target", "Plugins", "Speculation", "Build", "Output"


@dataclass(frozen=True)
class BuildOptions:
    """Options of ``hybridge.build_engine``, which describes them, and ``hybridge build-engine``.

    SettingError names a bad value. target: None takes the preset of ``compute_capabilities``, else that of this
    machine's GPU, else "generic". library: "auto" takes full TensorRT where it is installed and targets exactly this
    machine's GPU, else TensorRT-RTX. Other options default to the preset's value.
    """

    target: str | None = setting(
        None,
        "A preset of configs/, or a TOML file.",
        metavar="NAME",
        shown_default="this GPU's",
        group=_TARGET,
    )
    compute_capabilities: tuple[str, ...] = setting(
        (),
        "Target GPU such as 8.7 (repeatable).",
        flag="--compute-capability",
        metavar="X.Y",
        shown_default="the preset's",
        group=_TARGET,
    )
    max_batch_size: int | None = setting(
        None,
        "Maximum batch size.",
        flag="--max-batch",
        metavar="N",
        least=1,
        shown_default="the preset's",
        group=_TARGET,
    )
    max_seq_len: int | None = setting(
        None, "Maximum tokens of a sequence.", metavar="N", least=1, shown_default="the preset's", group=_TARGET
    )
    plugins: str = setting(
        "auto",
        "Use the project's CUDA plugins: auto, on or off.",
        metavar="WHEN",
        choices=PLUGIN_MODES,
        group=_PLUGINS,
    )
    plugin_states: str = setting(
        ALIASED,
        "Update states in place (aliased) or in a second buffer (separate).",
        metavar="HOW",
        choices=PLUGIN_STATES,
        group=_PLUGINS,
    )
    plugin_mixers: str = setting(
        JOINED,
        "A Mamba2 mixer's convolution, state update and gate as one plugin (joined) or several (separate).",
        metavar="HOW",
        choices=PLUGIN_MIXERS,
        group=_PLUGINS,
    )
    speculative_tokens: int = setting(
        0,
        "Check up to N draft tokens a row in one step (paged).",
        metavar="N",
        least=0,
        most=MOST_SPECULATIVE_TOKENS,
        group=_SPECULATION,
    )
    draft_states: str = setting(
        SNAPSHOT,
        "States of draft tokens: a slot for each (snapshot) or a second engine that advances them (replay).",
        metavar="HOW",
        choices=DRAFT_STATES,
        group=_SPECULATION,
    )
    mtp: bool = setting(
        True,
        "With --speculative-tokens: do not build an engine for the prediction head.",
        flag="--no-mtp",
        group=_SPECULATION,
    )
    library: str = setting(
        "auto",
        "auto, tensorrt or tensorrt_rtx, which needs no GPU.",
        metavar="NAME",
        choices=("auto", *TENSORRT_LIBRARIES),
        group=_BUILD,
    )
    workspace_mib: int | None = setting(
        None,
        "Limit of TensorRT's scratch memory.",
        metavar="MIB",
        least=1,
        most=MOST_WORKSPACE_MIB,
        shown_default="the preset's",
        group=_BUILD,
    )
    optimization_level: int | None = setting(
        None,
        "0 (fast build) to 5 (slow build).",
        metavar="N",
        least=0,
        most=5,
        shown_default="the preset's",
        group=_BUILD,
    )
    overwrite: bool = setting(False, "Replace an engine of the same name.", group=_OUTPUT)

    def __post_init__(self) -> None:
        check_settings(self)
        for capability in self.compute_capabilities:
            normal_capability(capability)
