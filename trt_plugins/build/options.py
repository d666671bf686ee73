"""What a user may choose about an engine build."""

from __future__ import annotations

from dataclasses import dataclass

from hybridge.artifact.engine_record import TENSORRT_LIBRARIES
from hybridge.artifact.errors import UnsupportedError
from hybridge.trt_plugins.build.capability import normal_capability

PLUGIN_MODES = ("auto", "on", "off")
ALIASED = "aliased"
PLUGIN_STATES = (ALIASED, "separate")
JOINED = "joined"
PLUGIN_MIXERS = (JOINED, "separate")
SNAPSHOT, REPLAY = CANDIDATE_STATES = ("snapshot", "replay")


@dataclass(frozen=True)
class BuildOptions:
    """Arguments of ``hybridge build-engine``.

    preset: the name of a file in configs/ or the path of a TOML file. None takes the preset of
        ``compute_capabilities``, else that of this machine's GPU, else "generic".
    compute_capabilities: targets such as ("8.6",) that replace the preset's.
    max_batch_size, max_seq_len: replace the preset's; at most what the artifact was exported with.
    plugins: "on" makes a plugin of every operator of the domain trt_edgellm, "off" builds from native layers
        alone, "auto" is "on" where plugins support the target and the sizes, else "off".
    plugin_states: "aliased" lets plugins update states in place where TensorRT can, "separate" gives every state two
        buffers.
    plugin_mixers: "joined" makes one plugin of a Mamba2 mixer's convolution, state update and gate, "separate" makes
        two of the operators and leaves the gate to TensorRT.
    candidate_states: what becomes of recurrent states where the artifact has candidate tokens: "snapshot" keeps one
        after each, "replay" holds them, and a second engine advances them by the tokens that were right.
    library: "tensorrt", "tensorrt_rtx", or "auto": full TensorRT where it is installed and targets exactly
        this machine's GPU, else TensorRT-RTX.
    workspace_mib: limit of TensorRT's scratch memory in MiB.
    optimization_level: TensorRT's builder optimization level, 0 to 5.
    overwrite: replace an engine that was built under the same name before.
    """

    preset: str | None = None
    compute_capabilities: tuple[str, ...] = ()
    max_batch_size: int | None = None
    max_seq_len: int | None = None
    plugins: str = "auto"
    plugin_states: str = ALIASED
    plugin_mixers: str = JOINED
    candidate_states: str = SNAPSHOT
    library: str = "auto"
    workspace_mib: int | None = None
    optimization_level: int | None = None
    overwrite: bool = False

    def check(self) -> BuildOptions:
        """Return self, or raise UnsupportedError naming the option that cannot be honoured."""
        if self.plugins not in PLUGIN_MODES:
            raise UnsupportedError(f"--plugins: expected auto, on or off, found {self.plugins}")
        if self.plugin_states not in PLUGIN_STATES:
            raise UnsupportedError(f"--plugin-states: expected aliased or separate, found {self.plugin_states}")
        if self.plugin_mixers not in PLUGIN_MIXERS:
            raise UnsupportedError(f"--plugin-mixers: expected joined or separate, found {self.plugin_mixers}")
        if self.candidate_states not in CANDIDATE_STATES:
            raise UnsupportedError(f"--candidate-states: expected snapshot or replay, found {self.candidate_states}")
        if self.library not in ("auto", *TENSORRT_LIBRARIES):
            raise UnsupportedError(f"--library: expected auto, {' or '.join(TENSORRT_LIBRARIES)}, found {self.library}")
        for name, value in (
            ("--max-batch", self.max_batch_size),
            ("--max-seq-len", self.max_seq_len),
            ("--workspace-mib", self.workspace_mib),
        ):
            if value is not None and value < 1:
                raise UnsupportedError(f"{name}: expected at least 1, found {value}")
        if self.optimization_level is not None and not 0 <= self.optimization_level <= 5:
            raise UnsupportedError(f"--optimization-level: expected 0 to 5, found {self.optimization_level}")
        for capability in self.compute_capabilities:
            normal_capability(capability)
        return self
