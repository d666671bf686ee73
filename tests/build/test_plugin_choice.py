"""Which engines get plugins: every reason against them is named, and is an error only if plugins are required."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import onnx
import pytest

from hybridge.artifact.dtypes import DType
from hybridge.artifact.engine_record import ProfileRecord
from hybridge.artifact.errors import SettingError, UnsupportedError
from hybridge.trt_plugins.build import plugin_choice
from hybridge.trt_plugins.build.model import use_plugins
from hybridge.trt_plugins.build.options import BuildOptions
from hybridge.trt_plugins.build.plugin_choice import PluginChoice, choose_plugins, node_calls, plugin_gaps
from hybridge.trt_plugins.build.presets import read_preset
from hybridge.trt_plugins.build.target import Target
from hybridge.trt_plugins.call_check import CheckedCall
from hybridge.trt_plugins.catalog import PACKED_OPS
from hybridge.trt_plugins.checks import CheckedNode, check_op_nodes
from hybridge.trt_plugins.functions import attach_functions
from hybridge.trt_plugins.kernels.call import CallPlan, DeviceTraits, OpCall
from hybridge.trt_plugins.plugins.fields import ALIASED, CAPABILITIES
from tests.ops.expert_cases import expert_model
from tests.ops.node_model import node_model
from tests.plugins.planner_double import SIZES, plan_by_shape
from tests.rewrites.mixer_graph import mixer_model

TARGET = Target("rtx-ada", read_preset("rtx-ada"), "tensorrt_rtx", ("8.9",))
SSM_TYPES = dict.fromkeys(("x", "B", "C", "dt"), "float16") | dict.fromkeys(("A", "D", "dt_bias", "state"), "float32")
CONV_TYPES = dict.fromkeys(("x", "weight", "bias", "conv_state"), "bfloat16")


def profiles(most: int = 512) -> list[ProfileRecord]:
    prefill = ProfileRecord("prefill", {"input_ids": [[1, 1], [1, 32], [4, most]]})
    return [prefill, ProfileRecord("decode", {"input_ids": [[1, 1], [1, 1], [4, 1]]})]


def ssm_model(types: dict[str, str] | None = None, **sizes: int) -> onnx.ModelProto:
    """One state update with SIZES, except for symbolic rows and tokens."""
    static = {name: size for name, size in {**SIZES, **sizes}.items() if name not in ("batch", "time")}
    model = node_model("update_ssm_state", {**SSM_TYPES, **(types or {})}, static, attach=False)
    model.graph.node[0].name = "layers.1.ssm"
    return model


def choose(mode: str, model: onnx.ModelProto, target: Target = TARGET, most: int = 512) -> PluginChoice:
    return choose_plugins(model, BuildOptions(plugins=mode), target, profiles(most), plan_by_shape)


@pytest.mark.parametrize("mode", ["auto", "on"])
def test_supported_nodes_become_plugins(mode: str) -> None:
    assert choose(mode, ssm_model()) == PluginChoice({"layers.1.ssm": "update_ssm_state"}, "", ("8.9",), aliased=True)


@pytest.mark.parametrize("mode", ["auto", "on"])
def test_experts_keep_their_function_next_to_plugins(mode: str) -> None:
    model, experts = ssm_model(), expert_model("float16", "silu", 1)
    del experts.functions[:]
    other = onnx.compose.add_prefix(experts, "experts.").graph
    for field in ("node", "input", "output"):
        getattr(model.graph, field).extend(getattr(other, field))
    attach_functions(model)
    choice = choose(mode, model)
    assert choice.nodes == {"layers.1.ssm": "update_ssm_state"}
    use_plugins(model, choice)
    assert [function.name for function in model.functions] == ["routed_experts"]


def test_states_may_be_separate() -> None:
    options = BuildOptions(plugin_states="separate")
    assert not choose_plugins(ssm_model(), options, TARGET, profiles(), plan_by_shape).aliased


def mixer() -> onnx.ModelProto:
    """The states of a mixer are as large as the artifact; its rows and tokens are symbolic."""
    return mixer_model(DType.FLOAT16)


def test_mixers_are_joined_where_plugins_run_them() -> None:
    model = mixer()
    choice = choose("on", model)
    assert choice.nodes == {"node_mamba2_conv_scan": "mamba2_conv_scan"}
    use_plugins(model, choice)
    assert [node.op_type for node in model.graph.node] == ["Split", "mamba2_conv_scan", "Cast"]
    assert not model.functions


def test_mixers_may_stay_separate() -> None:
    model = mixer()
    before = model.SerializeToString()
    options = BuildOptions(plugins="on", plugin_mixers="separate")
    choice = choose_plugins(model, options, TARGET, profiles(), plan_by_shape)
    assert set(choice.nodes.values()) == {"causal_conv1d", "update_ssm_state"}
    assert model.SerializeToString() == before


@pytest.mark.parametrize("mode", ["auto", "off"])
def test_mixers_without_plugins_keep_their_bodies(mode: str) -> None:
    model = mixer()
    before = model.SerializeToString()
    choice = choose(mode, model, most=5000)
    assert not choice.nodes
    use_plugins(model, choice)
    assert model.SerializeToString() == before


def test_mixers_that_only_the_two_operators_can_run_stay_separate() -> None:
    def planner(call: OpCall, device: DeviceTraits) -> CallPlan:
        if call.spec.name == "mamba2_conv_scan":
            raise UnsupportedError("expected two operators, found one")
        return CallPlan(())

    choice = choose_plugins(mixer(), BuildOptions(plugins="on"), TARGET, profiles(), planner)
    assert set(choice.nodes.values()) == {"causal_conv1d", "update_ssm_state"}


def test_off_is_off() -> None:
    assert choose("off", ssm_model()) == PluginChoice({}, "plugins are off")


def test_a_graph_without_operators_needs_none() -> None:
    model = ssm_model()
    del model.graph.node[:]
    assert choose("on", model) == PluginChoice({}, "the graph has none of their operators")


def half_a(model: onnx.ModelProto) -> None:
    next(v for v in model.graph.input if v.name == "A").type.tensor_type.elem_type = onnx.TensorProto.FLOAT16


def twice(model: onnx.ModelProto) -> None:
    model.graph.node.append(model.graph.node[0])


def symbolic(model: onnx.ModelProto) -> None:
    for value in model.graph.input:
        if value.name == "state":
            value.type.tensor_type.shape.dim[2].dim_param = "p"
        if value.name == "x":
            value.type.tensor_type.shape.dim[3].dim_param = "p"


def unknown_type(model: onnx.ModelProto) -> None:
    model.graph.node[0].input[0] = "nowhere"


GAPS: dict[str, tuple[dict[str, Any], Any, str]] = {
    "state size": (
        {"model": ssm_model(state_size=20)},
        None,
        r"node layers\.1\.ssm: the kernels .* found state_size 20",
    ),
    "head dim": ({"model": ssm_model(head_dim=264)}, None, r"head_dim from 8 to 256 .*found head_dim 264"),
    "tokens": ({"most": 5000}, None, r"node layers\.1\.ssm: expected at most 4096 tokens, found 5000"),
    "capability": (
        {"target": replace(TARGET, compute_capabilities=("8.9", "7.5"))},
        None,
        r"capability 8\.0 or higher, found 7\.5",
    ),
    "type of A": ({}, half_a, r"node layers\.1\.ssm: .*expected A of type float32, found float16"),
    "names": ({}, twice, "a unique name for every operator node"),
    "unknown size": ({}, symbolic, "a constant head_dim, found a symbolic size"),
    "unknown type": ({}, unknown_type, "nowhere"),
}


@pytest.mark.parametrize("name", GAPS)
def test_gaps_are_named(name: str) -> None:
    arguments, edit, words = GAPS[name]
    model = onnx.ModelProto()
    model.CopyFrom(arguments.get("model", ssm_model()))
    if edit is not None:
        edit(model)
    given = {**arguments, "model": model}
    fallen_back = choose("auto", **given)
    assert not fallen_back.nodes
    with pytest.raises(SettingError, match=rf"^plugins: .*{words}.*; use `plugins='auto'`, or 'off'$") as caught:
        choose("on", **given)
    assert fallen_back.reason in str(caught.value)


def test_an_operator_without_kernels_is_a_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugin_choice, "operators", lambda: ("causal_conv1d",))
    assert "operators with CUDA kernels (causal_conv1d), found update_ssm_state" in choose("auto", ssm_model()).reason


def test_a_device_without_the_kernels_packages_is_a_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    """With full TensorRT the engine runs where it is built; TensorRT-RTX builds for other machines."""
    monkeypatch.setattr(plugin_choice, "_KERNEL_PACKAGE", "absent.package")
    assert choose("auto", ssm_model()).nodes
    assert "absent.package" in choose("auto", ssm_model(), replace(TARGET, library="tensorrt")).reason


def test_bodies_of_plugins_are_dropped_and_nodes_completed() -> None:
    model = node_model("causal_conv1d", CONV_TYPES, {"kernel": 4, "conv_dim": 24})
    other = model.functions.add()
    other.name, other.domain = "twice", "another"
    use_plugins(model, PluginChoice({"node": "causal_conv1d"}, "", ("8.6", "8.9"), aliased=False))
    assert [function.name for function in model.functions] == ["twice"]
    found = {a.name: onnx.helper.get_attribute_value(a) for a in model.graph.node[0].attribute}
    assert found == {"activation": b"none", CAPABILITIES: b"8.6,8.9", ALIASED: 0, "plugin_version": b"1"}


def test_without_plugins_the_model_stays() -> None:
    model = node_model("causal_conv1d", CONV_TYPES, {"kernel": 4, "conv_dim": 24})
    before = model.SerializeToString(deterministic=True)
    use_plugins(model, PluginChoice({}, "plugins are off", ("8.6",)))
    assert model.SerializeToString(deterministic=True) == before


def attention_node(
    heads: int, kv_heads: int, head_dim: int, dtype: DType = DType.BFLOAT16, parts: int = 2
) -> CheckedNode:
    sizes = {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, "block_size": 16, "parts": parts}
    dims = {**dict.fromkeys(("tokens", "rows", "row_bounds", "max_blocks", "num_blocks")), **sizes}
    spec = PACKED_OPS["paged_attention"]
    call = CheckedCall(dims, {"T": dtype}, spec.complete_attributes({}), has_time=False)
    (example,) = check_op_nodes(ssm_model())
    return replace(example, spec=spec, call=call)


def paged_profile(kv_heads: int, head_dim: int, parts: int = 2) -> ProfileRecord:
    shapes = {"input_ids": [[1], [32], [100]], "block_table": [[1, 1], [2, 4], [3, 9]]}
    shapes["kv_pool_0"] = [[parts, blocks, 16, kv_heads, head_dim] for blocks in (1, 27, 27)]
    return ProfileRecord("prefill", shapes)


@pytest.mark.parametrize(
    ("capability", "dtype", "reason"),
    [("9.0", DType.BFLOAT16, ""), ("9.0", DType.FLOAT32, "16-bit heads"), ("8.9", DType.BFLOAT16, "")],
)
def test_latent_attention_is_a_plugin_where_it_has_a_kernel(capability: str, dtype: DType, reason: str) -> None:
    target = replace(TARGET, compute_capabilities=(capability,))
    node, profile = attention_node(32, 1, 576, dtype, parts=1), paged_profile(1, 576, parts=1)
    gaps = list(plugin_gaps((node,), target, [profile]))
    assert len(gaps) == bool(reason) and all(reason in gap for gap in gaps)


def test_sizes_of_a_paged_profile_reach_the_planner() -> None:
    """Bounds of rows go with rows, and pools of any size are one."""
    calls = list(node_calls(attention_node(8, 2, 64), paged_profile(2, 64)).calls())
    found = {tuple(layout.shape for layout in call.inputs if layout is not None) for call in calls}
    # No step has more rows than tokens: of up to 3 rows, one where there is one token, two where there are two.
    assert len(found) == len(calls) == (1 + 2 + 6 * 3) * 5
    assert {shapes[2] for shapes in found} == {(rows, blocks) for rows in (1, 2, 3) for blocks in (1, 2, 4, 8, 9)}
    assert all(shapes[3] == (shapes[2][0] + 1,) and shapes[1][1] == 27 for shapes in found)
