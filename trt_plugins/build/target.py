"""Which device an engine is built for, and by which library."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass

from hybridge.artifact.dtypes import DType
from hybridge.artifact.engine_record import TENSORRT_LIBRARIES
from hybridge.artifact.errors import EngineError, UnsupportedError
from hybridge.artifact.extras import install_command
from hybridge.trt_plugins.build.capability import (
    BOARD_CAPABILITIES,
    OLDEST_BFLOAT16,
    OLDEST_CAPABILITY,
    PORTABLE_CAPABILITIES,
    RTX_CAPABILITIES,
    local_capability,
    normal_capability,
    sm_name,
)
from hybridge.trt_plugins.build.options import BuildOptions
from hybridge.trt_plugins.build.presets import GENERIC, Preset, preset_for, read_preset

TENSORRT, TENSORRT_RTX = TENSORRT_LIBRARIES


@dataclass(frozen=True)
class Machine:
    """This machine's importable TensorRT modules and the compute capability of its GPU."""

    libraries: tuple[str, ...]
    capability: str | None


@dataclass(frozen=True)
class Target:
    """The outcome: ``name`` is the engine's folder; ``hardware_compatible`` asks full TensorRT for one engine
    that runs on all of ``compute_capabilities``."""

    name: str
    preset: Preset
    library: str
    compute_capabilities: tuple[str, ...]
    hardware_compatible: bool = False


def this_machine() -> Machine:
    """Look at this machine; imports no TensorRT."""
    installed = tuple(name for name in TENSORRT_LIBRARIES if importlib.util.find_spec(name) is not None)
    return Machine(installed, local_capability())


def choose_target(options: BuildOptions, machine: Machine) -> Target:
    """The target of ``options`` on ``machine``.

    UnsupportedError: the library cannot target the device. EngineError: no library, or no GPU where one is needed.
    """
    requested = tuple(dict.fromkeys(normal_capability(c) for c in options.compute_capabilities))
    preset = _choose_preset(options, requested, machine)
    capabilities = requested or preset.compute_capabilities
    library = _choose_library(options.library, capabilities, machine)
    name = preset.name
    if requested and requested != preset.compute_capabilities:
        name = "-".join([*([preset.name] if options.target else []), *map(sm_name, requested)])
    if library == TENSORRT_RTX:
        return Target(name, preset, library, _rtx_capabilities(capabilities))
    return _full_target(name, preset, capabilities, machine)


def check_dtype(target: Target, dtype: DType) -> None:
    """UnsupportedError where a GPU of ``target`` has no arithmetic in ``dtype``."""
    old = [capability for capability in target.compute_capabilities if float(capability) < OLDEST_BFLOAT16]
    if dtype is DType.BFLOAT16 and old:
        raise UnsupportedError(
            f"expected compute capability {OLDEST_BFLOAT16} or newer for an artifact in bfloat16, found "
            f"{', '.join(old)}: export with `dtype='float16'`"
        )


def _choose_preset(options: BuildOptions, requested: tuple[str, ...], machine: Machine) -> Preset:
    if options.target is not None:
        return read_preset(options.target)
    device = requested[0] if len(requested) == 1 else None if requested else machine.capability
    return (preset_for(device) if device else None) or read_preset(GENERIC)


def _choose_library(wish: str, capabilities: tuple[str, ...], machine: Machine) -> str:
    if wish == "auto":
        local = machine.capability is not None and capabilities in ((), (machine.capability,))
        wish = TENSORRT if TENSORRT in machine.libraries and local else TENSORRT_RTX
        if wish not in machine.libraries and TENSORRT in machine.libraries:
            wish = TENSORRT
    if wish not in machine.libraries:
        untargetable = [c for c in capabilities if c not in RTX_CAPABILITIES]
        if wish == TENSORRT_RTX and untargetable:
            raise _untargetable(untargetable)
        how = install_command("rtx") if wish == TENSORRT_RTX else "install TensorRT (JetPack has it)"
        raise EngineError(f"expected the Python module {wish}, found none: {how}")
    return wish


def _rtx_capabilities(capabilities: tuple[str, ...]) -> tuple[str, ...]:
    untargetable = [c for c in capabilities if c not in RTX_CAPABILITIES]
    if untargetable:
        raise _untargetable(untargetable)
    return capabilities or PORTABLE_CAPABILITIES


def _untargetable(capabilities: list[str]) -> UnsupportedError:
    names = ", ".join(_described(capability) for capability in capabilities)
    if all(float(capability) < OLDEST_CAPABILITY for capability in capabilities):
        return UnsupportedError(
            f"expected compute capability {OLDEST_CAPABILITY} or newer, found {names}: no supported TensorRT builds "
            "for it; run the artifact there with ONNX Runtime"
        )
    return UnsupportedError(
        f"TensorRT-RTX builds for compute capability {', '.join(RTX_CAPABILITIES)}, not for {names}: "
        "run hybridge build-engine on that device, with full TensorRT"
    )


def _described(capability: str) -> str:
    preset = preset_for(capability)
    return f"{capability} ({preset.name}: {preset.description})" if preset else capability


def _full_target(name: str, preset: Preset, capabilities: tuple[str, ...], machine: Machine) -> Target:
    local = machine.capability
    if local is None:
        raise EngineError(
            "full TensorRT builds only on a machine with an NVIDIA GPU, found none: build on the device, "
            "or install tensorrt-rtx for an RTX target"
        )
    if capabilities in ((), (local,)):
        return Target(name, preset, TENSORRT, (local,))
    discrete = all(float(c) >= 8.0 and c not in BOARD_CAPABILITIES for c in capabilities)
    if local in capabilities and discrete:
        return Target(name, preset, TENSORRT, capabilities, hardware_compatible=True)
    raise UnsupportedError(
        f"full TensorRT builds for the GPU of this machine ({local}), not for {', '.join(capabilities)}: "
        "build on that device, or use TensorRT-RTX for an RTX target"
    )
