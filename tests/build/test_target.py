"""Which device and library a build is for."""

from __future__ import annotations

from typing import Any

import pytest

from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import EngineError, SettingError, UnsupportedError
from hybridge.trt_plugins.build.options import BuildOptions
from hybridge.trt_plugins.build.target import Machine, check_dtype, choose_target

LAPTOP = Machine(("tensorrt_rtx",), None)
ADA_DESKTOP = Machine(("tensorrt", "tensorrt_rtx"), "8.9")
ORIN = Machine(("tensorrt",), "8.7")
HOPPER = Machine(("tensorrt", "tensorrt_rtx"), "9.0")
PORTABLE = ("8.0", "8.6", "8.9", "12.0", "12.1")


@pytest.mark.parametrize(
    ("machine", "options", "name", "library", "capabilities"),
    [
        (LAPTOP, {}, "generic", "tensorrt_rtx", PORTABLE),
        (LAPTOP, {"target": "dgx-spark"}, "dgx-spark", "tensorrt_rtx", ("12.1",)),
        (LAPTOP, {"compute_capabilities": ("sm_89",)}, "rtx-ada", "tensorrt_rtx", ("8.9",)),
        (LAPTOP, {"compute_capabilities": ("8.0",)}, "sm80", "tensorrt_rtx", ("8.0",)),
        (LAPTOP, {"compute_capabilities": ("8.6", "12.0")}, "sm86-sm120", "tensorrt_rtx", ("8.6", "12.0")),
        (LAPTOP, {"compute_capabilities": ("8.6", "86")}, "rtx-ampere", "tensorrt_rtx", ("8.6",)),
        (
            LAPTOP,
            {"target": "jetson-orin", "compute_capabilities": ("8.6",)},
            "jetson-orin-sm86",
            "tensorrt_rtx",
            ("8.6",),
        ),
        (ORIN, {}, "jetson-orin", "tensorrt", ("8.7",)),
        (ORIN, {"target": "generic"}, "generic", "tensorrt", ("8.7",)),
        (ADA_DESKTOP, {}, "rtx-ada", "tensorrt", ("8.9",)),
        (ADA_DESKTOP, {"library": "tensorrt_rtx"}, "rtx-ada", "tensorrt_rtx", ("8.9",)),
        (ADA_DESKTOP, {"target": "rtx-blackwell"}, "rtx-blackwell", "tensorrt_rtx", ("12.0",)),
        (HOPPER, {}, "generic", "tensorrt", ("9.0",)),
        (Machine(("tensorrt_rtx",), "9.0"), {}, "generic", "tensorrt_rtx", PORTABLE),
    ],
)
def test_choice(
    machine: Machine, options: dict[str, Any], name: str, library: str, capabilities: tuple[str, ...]
) -> None:
    target = choose_target(BuildOptions(**options), machine)
    assert (target.name, target.library, target.compute_capabilities) == (name, library, capabilities)
    assert not target.hardware_compatible


def test_full_tensorrt_builds_for_several_discrete_gpus_at_once() -> None:
    options = BuildOptions(compute_capabilities=("8.6", "8.9"), library="tensorrt")
    target = choose_target(options, ADA_DESKTOP)
    assert (target.library, target.hardware_compatible) == ("tensorrt", True)


@pytest.mark.parametrize(
    ("machine", "options", "error", "words"),
    [
        (LAPTOP, {"target": "jetson-orin"}, UnsupportedError, r"not for 8\.7 \(jetson-orin.*full TensorRT"),
        (LAPTOP, {"target": "jetson-thor"}, UnsupportedError, r"not for 11\.0 \(jetson-thor.*full TensorRT"),
        (Machine((), None), {"target": "jetson-orin"}, UnsupportedError, r"not for 8\.7"),
        (LAPTOP, {"compute_capabilities": ("8.6", "9.0")}, UnsupportedError, r"not for 9\.0:"),
        (LAPTOP, {"compute_capabilities": ("5.0",)}, UnsupportedError, r"expected .* 7\.5 or newer, found 5\.0"),
        (LAPTOP, {"library": "tensorrt"}, EngineError, "the Python module tensorrt, found none"),
        (Machine((), None), {}, EngineError, r"pip install --editable '.*\[rtx\]'"),
        (Machine(("tensorrt",), None), {}, EngineError, "only on a machine with an NVIDIA GPU, found none"),
        (ADA_DESKTOP, {"target": "rtx-ampere", "library": "tensorrt"}, UnsupportedError, r"\(8\.9\), not for 8\.6"),
        (ORIN, {"compute_capabilities": ("8.7", "8.6")}, UnsupportedError, r"\(8\.7\), not for 8\.7, 8\.6"),
    ],
)
def test_refusal(machine: Machine, options: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        choose_target(BuildOptions(**options), machine)


def test_a_gpu_without_bfloat16_takes_other_types_only() -> None:
    turing = choose_target(BuildOptions(compute_capabilities=("7.5", "8.6")), LAPTOP)
    check_dtype(turing, DType.FLOAT16)
    check_dtype(choose_target(BuildOptions(), LAPTOP), DType.BFLOAT16)
    with pytest.raises(UnsupportedError, match=r"bfloat16, found 7\.5: export with `dtype='float16'`"):
        check_dtype(turing, DType.BFLOAT16)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"plugins": "maybe"}, "expected one of auto, on, off"),
        ({"plugin_states": "copied"}, "plugin_states: expected aliased or separate"),
        ({"plugin_mixers": "one"}, "plugin_mixers: expected joined or separate"),
        ({"library": "cuda"}, "expected one of auto, tensorrt"),
        ({"max_batch_size": 0}, "max_batch_size: expected an integer of at least 1"),
        ({"max_seq_len": -3}, "max_seq_len: expected an integer of at least 1"),
        ({"workspace_mib": 0}, "workspace_mib: expected an integer from 1 to 8796093022207"),
        ({"workspace_mib": 1 << 43}, "workspace_mib: expected an integer from 1 to 8796093022207"),
        ({"optimization_level": 6}, "expected an integer from 0 to 5"),
        ({"compute_capabilities": ("fast",)}, "compute_capabilities"),
    ],
)
def test_options_are_checked(options: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingError, match=words):
        BuildOptions(**options)
