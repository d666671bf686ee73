"""TensorRT's callbacks: a failure is recorded and raised with operator, layer and shapes, from any caller."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import EngineError
from hybridge.trt_plugins.kernels.catalog import plugin_specs
from hybridge.trt_plugins.plugins.data_types import trt_from_dtype
from hybridge.trt_plugins.plugins.fields import ALIASED, CAPABILITIES, make_fields
from hybridge.trt_plugins.plugins.registration import PluginRegistration
from hybridge.trt_plugins.spec import OpSpec
from tests.plugins import stand_in
from tests.plugins.planner_double import FAILING_STREAM, DeviceDouble, input_dtypes, input_shapes, plan_by_shape
from tests.plugins.stand_in import dynamic_desc, tensor_desc

F16, F32 = DType.FLOAT16, DType.FLOAT32


@pytest.fixture
def device() -> DeviceDouble:
    return DeviceDouble()


@pytest.fixture
def registration(trt: Any, device: DeviceDouble) -> PluginRegistration:
    return PluginRegistration(trt, plan_by_shape, lambda: device)


FORMS = [pytest.param(spec, id=f"{spec.name} {spec.version}") for spec in plugin_specs()]


def created(trt: Any, registration: PluginRegistration, op: str = "update_ssm_state", version: int = 1) -> Any:
    """A plugin as the parser makes it, named layers.1.ssm, with workspace for a batch of 3."""
    creator = registration.creators[op, version]
    fields = make_fields(trt, creator_spec(op, version), {CAPABILITIES: "8.6,8.9"})
    plugin = creator.create_plugin("layers.1.ssm", trt.PluginFieldCollection(fields), trt.TensorRTPhase.BUILD)
    plugin.core.layer.workspace.nbytes = 1 << 20
    return plugin


def creator_spec(op: str, version: int = 1) -> Any:
    from hybridge.trt_plugins.catalog import spec_of

    return spec_of(op, version)


def descs(trt: Any, op: str = "update_ssm_state", **sizes: int) -> tuple[list[Any], list[Any]]:
    """``trt.PluginTensorDesc`` of inputs and outputs."""
    inputs = [tensor_desc(trt, d, s) for d, s in zip(input_dtypes(op), input_shapes(op, **sizes), strict=True)]
    spec = creator_spec(op)
    return inputs, [inputs[spec.output_source(output)] for output in spec.outputs]


def dynamic_descs(trt: Any, **most: int) -> list[Any]:
    sides = input_shapes(batch=1, time=1), input_shapes(**most)
    return [dynamic_desc(trt, dtype, *shapes) for dtype, *shapes in zip(input_dtypes(), *sides, strict=True)]


@pytest.mark.parametrize("spec", FORMS)
def test_names_come_from_the_declaration(trt: Any, registration: PluginRegistration, spec: OpSpec) -> None:
    creator, plugin = (
        registration.creators[spec.name, spec.version],
        created(trt, registration, spec.name, spec.version),
    )
    expected = (spec.name, str(spec.version), "trt_edgellm")
    assert (creator.name, creator.plugin_version, creator.plugin_namespace) == expected
    assert (plugin.plugin_name, plugin.plugin_version, plugin.plugin_namespace) == expected
    names = [field.name for field in creator.field_names]
    assert names == [*(attribute.name for attribute in spec.attributes), CAPABILITIES, ALIASED]
    assert plugin.num_outputs == len(spec.outputs)
    assert plugin.get_capability_interface(None) is plugin


@pytest.mark.parametrize("spec", FORMS)
def test_plugins_round_trip_through_the_creator(trt: Any, registration: PluginRegistration, spec: OpSpec) -> None:
    plugin = created(trt, registration, spec.name, spec.version)
    creator = registration.creators[spec.name, spec.version]
    again = creator.create_plugin("other", plugin.get_fields_to_serialize(), trt.TensorRTPhase.RUNTIME)
    assert again.core.layer == plugin.core.layer and again.core.layer.spec is spec
    assert again.core.layer.name == "layers.1.ssm"


def test_only_states_are_aliased(trt: Any, registration: PluginRegistration) -> None:
    plugin = created(trt, registration)
    assert [plugin.get_aliased_input(index) for index in range(2)] == [-1, 7]
    assert [created(trt, registration, "causal_conv1d").get_aliased_input(index) for index in range(2)] == [-1, 3]
    pools = created(trt, registration, "update_ssm_state", 3)
    assert [pools.get_aliased_input(index) for index in range(2)] == [
        -1,
        creator_spec("update_ssm_state", 3).input_index("state"),
    ]


def test_separate_states_are_not_aliased(trt: Any, registration: PluginRegistration) -> None:
    """TensorRT refuses an alias when its feature is off."""
    creator = registration.creators["update_ssm_state", 1]
    fields = make_fields(trt, creator_spec("update_ssm_state"), {CAPABILITIES: "8.6", ALIASED: 0})
    plugin = creator.create_plugin("x", trt.PluginFieldCollection(fields), trt.TensorRTPhase.BUILD)
    assert [plugin.get_aliased_input(index) for index in range(2)] == [-1, -1]


def test_only_linear_formats(trt: Any, registration: PluginRegistration) -> None:
    plugin, tensors = created(trt, registration), dynamic_descs(trt)
    assert plugin.supports_format_combination(0, tensors, 9)
    tensors[0].desc.format = next(f for f in (trt.TensorFormat.CHW4, trt.TensorFormat.HWC8) if f)
    assert not plugin.supports_format_combination(0, tensors, 9)


def test_bytes_of_e4m3_are_int8(trt: Any, registration: PluginRegistration) -> None:
    """TensorRT gives uint8 to casts alone."""
    spec = creator_spec("reshape_and_cache_fp8", 2)
    plugin = created(trt, registration, spec.name, 2)
    kinds = [trt.DataType.HALF if t.dtype == "T" else trt_from_dtype(trt, t.dtype) for t in spec.inputs]
    assert kinds[spec.input_index("kv_pool")] == trt.DataType.INT8
    assert plugin.get_output_data_types(kinds) == [trt.DataType.INT8, trt.DataType.FLOAT]
    kinds[spec.input_index("kv_pool")] = trt.DataType.UINT8
    with pytest.raises(EngineError, match="a tensor type that artifacts have"):
        plugin.get_output_data_types(kinds)


def test_workspace_is_requested_once_for_all_shapes(trt: Any, registration: PluginRegistration) -> None:
    plugin, tensors = created(trt, registration), dynamic_descs(trt, batch=8, time=512)
    plugin.configure_plugin(tensors, [])
    assert plugin.get_workspace_size(tensors, []) == 256 * 192


def test_enqueue_launches_what_the_shapes_prepared(
    trt: Any, registration: PluginRegistration, device: DeviceDouble
) -> None:
    plugin = created(trt, registration).attach_to_context(None)
    inputs, outputs = descs(trt)
    plugin.on_shape_change(inputs, outputs)
    plugin.enqueue(inputs, outputs, list(range(9)), [10, 11], 12, 13)
    plugin.enqueue(inputs, outputs, list(range(9)), [20, 21], 22, 23)
    assert [bound.plan.name for bound in device.bound] == ["3x5"]
    assert device.bound[0].launches == [(13, [*range(9)], [10, 11], 12), (23, [*range(9)], [20, 21], 22)]


def test_streams_and_pointers_may_be_objects(trt: Any, registration: PluginRegistration, device: DeviceDouble) -> None:
    """What cuda.core, torch and pycuda have: __cuda_stream__, cuda_stream, handle; int(), data_ptr()."""
    plugin, (inputs, outputs) = created(trt, registration), descs(trt)
    streams = (
        SimpleNamespace(__cuda_stream__=lambda: (0, 5)),
        SimpleNamespace(cuda_stream=6),
        SimpleNamespace(handle=7),
    )
    tensor = SimpleNamespace(data_ptr=lambda: 256)
    for stream in streams:
        plugin.enqueue(inputs, outputs, [tensor] * 9, [tensor, 512], None, stream)
    assert [launch[0] for launch in device.bound[0].launches] == [5, 6, 7]
    assert device.bound[0].launches[0][1:] == ([256] * 9, [256, 512], 0)


def test_contexts_launch_their_own(trt: Any, registration: PluginRegistration, device: DeviceDouble) -> None:
    plugin = created(trt, registration)
    one, other = plugin.attach_to_context(None), plugin.attach_to_context(None)
    short, long = descs(trt, time=1), descs(trt, time=5)
    one.on_shape_change(*short)
    other.on_shape_change(*long)
    one.enqueue(*short, [1] * 9, [2, 3], 0, 0)
    other.enqueue(*long, [4] * 9, [5, 6], 0, 0)
    assert [(bound.plan.name, len(bound.launches)) for bound in device.bound] == [("3x1", 1), ("3x5", 1)]


SHAPES = r"with x \[3, 5, 4, 8\], A \[4\], .*context_lengths \[3\]"
FAILURES: dict[str, tuple[Callable[[Any, Any], Any], str]] = {
    "get_output_data_types": (
        lambda trt, plugin: plugin.get_output_data_types([trt.DataType.INT32] * 9),
        "get_output_data_types: .*expected x of type float16 or bfloat16 or float32, found int32",
    ),
    "configure_plugin": (
        lambda trt, plugin: plugin.configure_plugin(dynamic_descs(trt, groups=3), []),
        "configure_plugin: .*expected groups to divide heads",
    ),
    "get_workspace_size": (
        lambda trt, plugin: plugin.get_workspace_size(dynamic_descs(trt, time=5000), []),
        "get_workspace_size: expected at most 4096 tokens, found 5000",
    ),
    "on_shape_change": (
        lambda trt, plugin: plugin.on_shape_change(*descs(trt, time=4097)),
        r"on_shape_change with x \[3, 4097, 4, 8\].*: expected at most 4096 tokens, found 4097",
    ),
    "enqueue": (
        lambda trt, plugin: plugin.enqueue(*descs(trt), [1] * 9, [2, 3], 0, FAILING_STREAM),
        f"enqueue {SHAPES}: RuntimeError: the driver refuses",
    ),
    "enqueue of shapes without kernels": (
        lambda trt, plugin: plugin.enqueue(*descs(trt, time=4097), [1] * 9, [2, 3], 0, 0),
        r"enqueue with x \[3, 4097, 4, 8\].*context_lengths \[3\]: expected at most 4096 tokens, found 4097: use",
    ),
    "a stream of no kind": (
        lambda trt, plugin: plugin.enqueue(*descs(trt), [1] * 9, [2, 3], 0, "stream"),
        f"enqueue {SHAPES}: expected a CUDA stream",
    ),
    "supports_format_combination": (
        lambda trt, plugin: plugin.supports_format_combination(20, dynamic_descs(trt), 9),
        "supports_format_combination: IndexError",
    ),
    "set_tactic": (lambda trt, plugin: plugin.set_tactic(3), "set_tactic: expected a tactic from 0 to 2, found 3"),
}


@pytest.mark.parametrize("name", FAILURES)
def test_failures_are_recorded(trt: Any, registration: PluginRegistration, name: str) -> None:
    call, words = FAILURES[name]
    plugin = created(trt, registration)
    with pytest.raises(EngineError, match=rf"^plugin update_ssm_state of layer layers\.1\.ssm, {words}") as caught:
        call(trt, plugin)
    assert registration.errors.take() is caught.value


def test_the_first_failure_is_the_one_to_report(trt: Any, registration: PluginRegistration) -> None:
    """A clone made after a failure still reports to the same place."""
    plugin = created(trt, registration).clone()
    for time in (4097, 4098):
        with pytest.raises(EngineError):
            plugin.on_shape_change(*descs(trt, time=time))
    assert "found 4097" in str(registration.errors.take())


def test_a_creator_that_fails_is_recorded(trt: Any, registration: PluginRegistration) -> None:
    creator = registration.creators["update_ssm_state", 1]
    fields = make_fields(trt, creator_spec("update_ssm_state"), {"chunk_size": 0})
    with pytest.raises(EngineError, match=r"layer layers\.2, create_plugin: .*chunk_size of at least 1, found 0"):
        creator.create_plugin("layers.2", trt.PluginFieldCollection(fields), trt.TensorRTPhase.BUILD)
    assert registration.errors.take() is not None


def test_one_algorithm_is_no_choice(trt: Any, registration: PluginRegistration) -> None:
    """The planner double returns the same plan for every variant."""
    plugin = created(trt, registration)
    assert plugin.get_valid_tactics() == []
    plugin.configure_plugin(dynamic_descs(trt), [])
    assert plugin.get_valid_tactics() == []
    plugin.set_tactic(0)


def test_times_are_stored_by_shape(trt: Any, registration: PluginRegistration) -> None:
    """Operator, form, attributes, types, TensorRT's version and the kernels."""
    plugin = created(trt, registration)
    plugin.configure_plugin(dynamic_descs(trt), [])
    name = plugin.timing_cache_id
    for part in ("trt_edgellm::update_ssm_state 1", "dt_softplus=1", "T=float16", "S=float32", trt.__version__):
        assert part in name, name
    assert plugin.clone().timing_cache_id == name and len(name) < 512
    others = [created(trt, registration, "update_ssm_state", version) for version in (2, 3)]
    assert len({plugin.timing_cache_id for plugin in (plugin, *others)}) == 3


def hiding(trt: Any, *names: str) -> Any:
    """``trt`` as an older version, without ``names``."""
    kept = {name: getattr(trt, name) for name in dir(trt) if not name.startswith("__") and name not in names}
    return SimpleNamespace(**kept, __version__="9.3", __name__="old")


@pytest.mark.parametrize("name", ["IPluginV3OneBuildV2", "PreviewFeature"])
def test_without_aliasing_the_older_interface_is_used(trt: Any, name: str) -> None:
    old = hiding(trt, name)
    plugin = created(old, PluginRegistration(old, plan_by_shape, DeviceDouble))
    assert isinstance(plugin, trt.IPluginV3OneBuild) and not isinstance(plugin, trt.IPluginV3OneBuildV2)


def test_a_tensorrt_without_such_plugins_is_refused(trt: Any) -> None:
    with pytest.raises(EngineError, match=r"need TensorRT 10 or newer, found 9\.3 without IPluginV3OneRuntime"):
        PluginRegistration(hiding(trt, "IPluginV3OneRuntime"))


def test_a_taken_name_is_an_error() -> None:
    registry = stand_in.Registry()
    library = hiding(stand_in)
    library.get_plugin_registry = lambda: registry
    PluginRegistration(library, plan_by_shape, DeviceDouble).register(library)
    expected = [(spec.name, str(spec.version), spec.domain) for spec in plugin_specs()]
    assert sorted(registry.creators) == sorted(expected) and ("update_ssm_state", "3", "trt_edgellm") in expected
    with pytest.raises(EngineError, match=r"register the plugin causal_conv1d 1 .*found one there"):
        PluginRegistration(library, plan_by_shape, DeviceDouble).register(library)
