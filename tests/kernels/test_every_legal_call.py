"""Every call that an operator's declaration allows has a plan on every GPU that the kernels compile for.

What the kernels cannot run is refused by the declaration or, where shared memory is too small, by the planner, which is
called for every target when an engine is built.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping

import pytest

from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import UnsupportedError
from hybridge.trt_plugins.catalog import spec_of
from hybridge.trt_plugins.kernels.architectures import CHECKED
from hybridge.trt_plugins.kernels.call import CallPlan, DeviceTraits
from hybridge.trt_plugins.kernels.catalog import plan
from hybridge.trt_plugins.plugins.calls import CallRange
from hybridge.trt_plugins.plugins.targets import traits_from_capability
from tests.support.effort import sample
from tests.support.kernel_calls import capability_from_architecture

BASE = {"batch": 2, "time": 200, "heads": 6, "groups": 2, "head_dim": 64, "state_size": 128, "kernel": 4}
BASE |= {"key_heads": 2, "value_heads": 6, "key_size": 128, "value_size": 128, "decay_size": 1}
T, S = DType.BFLOAT16, DType.FLOAT32
FLOATS = (DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32)
LONGEST_GRID = 65535
# On push, one architecture for each size of shared memory, with and without Hopper's features.
ARCHITECTURES = sample(CHECKED, on_push=("sm_80", "sm_86", "sm_90a", "sm_120"))
MAMBA2 = ("causal_conv1d", "update_ssm_state", "mamba2_conv_scan")


def devices(architecture: str) -> tuple[DeviceTraits, ...]:
    """The smallest and the largest GPU of an architecture."""
    traits = traits_from_capability(capability_from_architecture(architecture))
    return traits[0], traits[-1]


def planned(op: str, device: DeviceTraits, types: Mapping[str, DType], **changes: int) -> CallPlan:
    """The plan of a call; sizes are those of BASE with ``changes``; time 0: the form of one token."""
    spec, sizes = spec_of(op), {**BASE, **changes}
    inner = sizes["heads"] * sizes["head_dim"]
    sizes = {"inner": inner, "conv_dim": inner + 2 * sizes["groups"] * sizes["state_size"], **sizes}
    named = {
        variable.name: types.get(variable.name, S if variable.name != "T" else T) for variable in spec.type_variables
    }
    calls = CallRange(spec, tuple(spec.complete_attributes({}).items()), tuple(named.items()), (), sizes["time"] > 0)
    return plan(calls.call(sizes), device)


def check(plan_: CallPlan, device: DeviceTraits) -> None:
    """The driver takes every launch."""
    assert plan_.launches
    for launch in plan_.launches:
        assert launch.shared_bytes <= device.shared_bytes, launch.source.label
        assert all(size >= 1 for size in launch.grid) and max(launch.grid[1:]) <= LONGEST_GRID
        assert math.prod(launch.block) <= 1024 and math.prod(launch.block) % 32 == 0
        assert launch.cluster == 1 or device.capability >= (9, 0)
        assert launch.grid[0] % launch.cluster == 0
        assert not launch.overlap or device.capability >= (9, 0)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("dtype", [DType.BFLOAT16, DType.FLOAT32], ids=lambda dtype: dtype.value)
def test_every_head_dim_and_state_size_runs(architecture: str, dtype: DType) -> None:
    device = devices(architecture)[0]
    sizes = range(8, 257, 8)
    for head_dim, state_size in itertools.product(sizes, sizes):
        check(planned("update_ssm_state", device, {"T": dtype}, head_dim=head_dim, state_size=state_size), device)


CHANGES = [
    *({"time": time, "batch": batch} for time in (0, 1, 2, 64, 65, 8192) for batch in (1, 64)),
    *(
        {"heads": heads, "groups": groups}
        for heads in (1, 6, 48, 128)
        for groups in (1, 2, 3, 48)
        if heads % groups == 0
    ),
    *({"kernel": kernel, "time": time} for kernel in range(2, 9) for time in (0, 200)),
    *({"head_dim": size, "state_size": size, "time": time} for size in (8, 72, 248, 256) for time in (0, 1, 200)),
]


@pytest.mark.parametrize("op", MAMBA2)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_one_factor_at_a_time(architecture: str, op: str) -> None:
    variables = {variable.name for variable in spec_of(op).type_variables} - {"T"}
    for device, data in itertools.product(devices(architecture), FLOATS):
        for others in {DType.FLOAT32, data}:
            types = {"T": data, **dict.fromkeys(variables, others)}
            for changes in CHANGES:
                check(planned(op, device, types, **changes), device)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("dtype", [DType.BFLOAT16, DType.FLOAT32], ids=lambda dtype: dtype.value)
def test_every_key_and_value_size_runs_where_shared_memory_allows(architecture: str, dtype: DType) -> None:
    """Large keys in float32 need more than the 99 KiB of some GPUs; there the planner says so, also at build time."""
    device = devices(architecture)[0]
    for key_size, value_size, time in itertools.product(range(8, 257, 8), (8, 240), (0, 200)):
        sizes = {"key_size": key_size, "value_size": value_size, "time": time}
        try:
            check(planned("gated_delta_rule", device, {"T": dtype}, **sizes), device)
        except UnsupportedError as error:
            small = device.shared_bytes < 128 * 1024
            assert small and dtype is DType.FLOAT32 and key_size >= 160 and time, (sizes, str(error))
            assert "bytes of shared memory" in str(error)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_size_of_a_selective_scan_runs(architecture: str) -> None:
    sizes = itertools.product((1, *range(8, 65, 8)), (1, 90, 8192), (0, 1, 2, 200), (1, 64))
    for device, (state_size, channels, time, batch) in itertools.product(devices(architecture), sizes):
        for groups in (1, channels):
            changes = {"state_size": state_size, "channels": channels, "groups": groups, "time": time, "batch": batch}
            check(planned("selective_scan", device, {}, **changes), device)


@pytest.mark.parametrize(
    ("op", "changes", "words"),
    [
        ("update_ssm_state", {"state_size": 264}, "state_size from 8 to 256 in multiples of 8"),
        ("update_ssm_state", {"head_dim": 12}, "head_dim from 8 to 256 in multiples of 8"),
        ("update_ssm_state", {"groups": 4}, "groups to divide heads"),
        ("mamba2_conv_scan", {"kernel": 9}, "kernel from 2 to 8"),
        ("causal_conv1d", {"kernel": 1}, "kernel from 2 to 8"),
        ("selective_scan", {"channels": 96, "state_size": 72}, "state_size 1 or from 8 to 64 in multiples of 8"),
        ("gated_delta_rule", {"key_size": 12}, "key_size from 8 to 256 in multiples of 8"),
    ],
)
@pytest.mark.parametrize("time", [0, 200])
def test_unsupported_sizes_are_refused_with_supported_ones(
    op: str, changes: dict[str, int], words: str, time: int
) -> None:
    with pytest.raises(UnsupportedError, match=words):
        planned(op, devices("sm_89")[0], {}, time=time, **changes)
