"""A plan of a packed call reads a plugin's inputs where TensorRT puts them: nothing is moved in an enqueue."""

from __future__ import annotations

import pytest

from hybridge.trt_plugins.catalog import spec_of
from hybridge.trt_plugins.kernels.call import DeviceTraits, Memory
from hybridge.trt_plugins.kernels.catalog import dense_operators, plan
from hybridge.trt_plugins.plugins.kernel_calls import plugin_plan
from hybridge.trt_plugins.specs.packed import PACKED_VERSION
from hybridge.trt_plugins.specs.speculative import SPECULATIVE_VERSION
from tests.plugins.test_workspace_bound import SIZES, call_range

HOPPER = DeviceTraits((9, 0), 132, 232448, 50 << 20)
FORMS = [
    (op, version)
    for op in dense_operators()
    for version in (PACKED_VERSION, SPECULATIVE_VERSION)
    if (op, version) != ("mamba2_conv_scan", SPECULATIVE_VERSION)
]
# What the kernels' parameters call otherwise than the operators.
OTHER_NAMES = {"num_accepted": "num_accepted_tokens"}


@pytest.mark.parametrize("tokens", [6, 130])
@pytest.mark.parametrize(("op", "version"), FORMS)
def test_every_pointer_is_to_the_input_of_its_name(op: str, version: int, tokens: int) -> None:
    spec = spec_of(op, version)
    sizes = {**SIZES, "rows": 6, "row_bounds": 7, "tokens": tokens}
    found = plugin_plan(spec, plan(call_range(op, version).call(sizes), HOPPER))
    names = [tensor.name for tensor in spec.inputs]
    seen = set()
    for launch in found.launches:
        for path, source in launch.pointers.items():
            field = path.split(".")[-1]
            assert source.memory is not Memory.PACKED
            if source.memory is Memory.INPUT:
                seen.add(names[source.index])
                expected = OTHER_NAMES.get(field, field)
                if expected in names:
                    # The convolution of a joined mixer calls its state as the convolution does.
                    assert names[source.index] in (expected, f"conv_{expected}"), path
    about = {"query_start_loc", "state_indices"} | ({"num_accepted_tokens"} & set(names))
    assert about <= seen and len(seen) == len(names)


def test_dense_plans_are_taken_as_they_are() -> None:
    dense = plan(call_range("update_ssm_state").call({**SIZES, "batch": 2, "time": 1}), HOPPER)
    assert plugin_plan(spec_of("update_ssm_state"), dense) is dense
