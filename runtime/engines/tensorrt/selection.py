"""Selection of the engine of an artifact for this machine, with reasons against the others."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from hybridge.artifact.engine_record import ENGINE_FILE, ENGINES_FOLDER, EngineRecord, read_engine_record
from hybridge.artifact.errors import ArtifactError, EngineError
from hybridge.artifact.extras import install_command
from hybridge.artifact.limits import ONNX_BYTES
from hybridge.artifact.path_kind import MODEL_FILE
from hybridge.artifact.untrusted_file import has_file, read_inside
from hybridge.runtime.engines.tensorrt.cuda_memory import cuda_core
from hybridge.trt_plugins.build.presets import preset_for
from hybridge.trt_plugins.build.target import Machine, this_machine
from hybridge.trt_plugins.build.tensorrt_library import TensorRTLibrary


@dataclass(frozen=True)
class BuiltEngine:
    """An engine folder and its record; ``build_again`` is the remedy for one that does not work."""

    folder: Path
    record: EngineRecord
    build_again: str

    @property
    def plan(self) -> Path:
        """The engine file."""
        return self.folder / self.record.engine


def find_engine(artifact: Path, requested: str | Path | None = None, machine: Machine | None = None) -> BuiltEngine:
    """The engine of ``artifact`` for this machine: the one ``requested`` (a folder, or a name in OUT/engines), or the
    latest that fits.

    EngineError says why none fits and which command builds one. ArtifactError: ``requested`` has no readable record.
    """
    machine = machine or this_machine()
    named = None if requested is None else _folder(artifact, requested)
    command = build_command(artifact, _capability(machine))
    if named is not None:
        folder = named
        built = BuiltEngine(folder, read_engine_record(folder / ENGINE_FILE), f"{command} --overwrite")
        problem = misfit(built.record, folder, artifact, machine)
        if problem is not None:
            raise EngineError(f"{folder}: {problem}: {command}")
        return built
    fitting, problems = [], []
    for folder in engine_folders(artifact):
        try:
            record = read_engine_record(folder / ENGINE_FILE)
            problem = misfit(record, folder, artifact, machine)
        except (ArtifactError, EngineError) as error:
            problem = str(error)
        if problem is None:
            fitting.append(BuiltEngine(folder, record, f"{command} --overwrite"))
        else:
            problems.append(f"{folder.name} ({problem})")
    if not fitting:
        found = "; ".join(problems) or "none"
        raise EngineError(
            f"{artifact}: expected an engine for this GPU (compute capability {machine.capability}), found {found}: "
            f"{command}{' --overwrite' if problems else ''}"
        )
    return max(fitting, key=lambda built: (built.folder / ENGINE_FILE).stat().st_mtime_ns)


def check_machine(machine: Machine | None = None) -> None:
    """EngineError where no TensorRT engine can run on ``machine`` (default: this one), whatever the artifact."""
    machine = machine or this_machine()
    _capability(machine)
    if not machine.libraries:
        raise EngineError(
            "the tensorrt engine needs the Python module tensorrt or tensorrt_rtx, found neither: "
            f"{install_command('rtx')}, or install TensorRT (JetPack has it)"
        )
    cuda_core()


def _capability(machine: Machine) -> str:
    if machine.capability is None:
        raise EngineError(
            "the tensorrt engine needs an NVIDIA GPU and its driver, found none: use `engine='onnxruntime'`"
        )
    return machine.capability


def engine_folders(artifact: Path) -> list[Path]:
    """The folders of the engines that were built of ``artifact``, sorted; costs one look at the disk."""
    return sorted(path.parent for path in (artifact / ENGINES_FOLDER).glob(f"*/{ENGINE_FILE}"))


def misfit(record: EngineRecord, folder: Path, artifact: Path, machine: Machine) -> str | None:
    """Why the engine of ``record`` in ``folder`` cannot run on ``machine``; None when it may.

    EngineError when the library that built it cannot be imported.
    """
    if machine.capability not in record.compute_capabilities:
        return f"built for compute capability {', '.join(record.compute_capabilities)}, not {machine.capability}"
    if record.library not in machine.libraries:
        return f"built by {record.library}, which is not installed"
    installed = TensorRTLibrary(record.library).version
    if installed != record.library_version:
        return f"built by {record.library} {record.library_version}, installed is {installed}"
    if not has_file(artifact, MODEL_FILE):
        return None
    if hashlib.sha256(read_inside(artifact, MODEL_FILE, ONNX_BYTES)).hexdigest() != record.model_sha256:
        return f"built from another {MODEL_FILE} than the artifact has now"
    return None


def build_command(artifact: Path, capability: str) -> str:
    """The command that builds an engine for a GPU of ``capability``."""
    preset = preset_for(capability)
    target = f"--target {preset.name}" if preset is not None else f"--compute-capability {capability}"
    return f"run hybridge build-engine {artifact} {target}"


def _folder(artifact: Path, requested: str | Path) -> Path:
    inside = artifact / ENGINES_FOLDER / requested
    for folder in (inside, Path(requested)):
        if (folder / ENGINE_FILE).is_file():
            return folder
    known = ", ".join(path.name for path in engine_folders(artifact)) or "none"
    raise EngineError(
        f"expected an engine folder or one of {ENGINES_FOLDER} ({known}), found {str(requested)!r}: name one of these, "
        f"or run hybridge build-engine {artifact}"
    )
