"""The binding plan of engines that were really built, checked against the network that TensorRT-RTX parses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import EngineError
from hybridge.runtime.engines.tensorrt.binding_plan import BindingPlan, binding_plan
from hybridge.runtime.engines.tensorrt.engine_tensors import EngineTensor
from hybridge.trt_plugins.build.model import parser_model
from hybridge.trt_plugins.plugins.data_types import dtype_from_trt
from tests.runtime.tensorrt.built import SMALL, BuiltArtifact, BuiltArtifacts


@pytest.fixture
def artifact(built_artifacts: BuiltArtifacts) -> BuiltArtifact:
    return built_artifacts.get(SMALL)


def network_tensors(artifact: BuiltArtifact) -> dict[str, EngineTensor]:
    """What the engine would say: types and shapes of the parsed network, profiles and aliases of the record."""
    from tests.build.parsed import parsed_network

    record, model = artifact.record, parser_model(artifact.folder, artifact.config, artifact.record.max_seq_len)
    aliases = {entry["name"]: entry.get("aliases") for entry in record.bindings}
    with parsed_network(artifact.folder, model) as network:
        return {t.name: t for t in _tensors(network, record, aliases)}


def _tensors(network: Any, record: Any, aliases: dict[str, str | None]) -> Iterator[EngineTensor]:
    for is_input, count, get in (
        (True, network.num_inputs, network.get_input),
        (False, network.num_outputs, network.get_output),
    ):
        for tensor in map(get, range(count)):
            profiles = (
                tuple(tuple(tuple(s) for s in p.shapes[tensor.name]) for p in record.profiles) if is_input else ()
            )
            dtype = dtype_from_trt(tensor.dtype)
            assert dtype is not None
            yield EngineTensor(tensor.name, is_input, dtype, tuple(tensor.shape), aliases[tensor.name], profiles)


def test_plan_of_a_parsed_network(artifact: BuiltArtifact) -> None:
    plan = binding_plan(artifact.config, artifact.record, network_tensors(artifact))
    assert [binding.name for binding in plan.inputs] == ["input_ids", "context_lengths", "past_lengths"]
    assert {state.spec.name: state.aliased for state in plan.states} == {
        "past_key_0": True,
        "past_value_0": True,
        "conv_state_0": False,
        "recurrent_state_0": False,
    }
    assert dict(plan.profiles) == {"prefill": 0, "decode": 1}
    assert (plan.max_batch_size, plan.max_seq_len, plan.max_step_tokens) == (3, 48, 48)
    assert plan.takes_turns and plan.shapes(2, 7)["past_key_0"] == (2, 2, 48, 10)
    assert plan.nbytes(plan.logits, 2) == 2 * 61 * 4


def changed(artifact: BuiltArtifact, name: str, **changes: Any) -> BindingPlan:
    """The plan where one tensor differs."""
    tensors = network_tensors(artifact)
    return binding_plan(artifact.config, artifact.record, {**tensors, name: replace(tensors[name], **changes)})


def test_a_tensor_of_another_type_or_shape_is_refused(artifact: BuiltArtifact) -> None:
    with pytest.raises(EngineError, match=r"present_conv_state_0: expected .*float32.*found .*float16"):
        changed(artifact, "present_conv_state_0", dtype=DType.FLOAT16)
    with pytest.raises(EngineError, match="logits: expected"):
        changed(artifact, "logits", shape=(-1, 62))
    with pytest.raises(EngineError, match="input_ids: expected"):
        changed(artifact, "input_ids", shape=(1, -1))


def test_outputs_may_be_known_better_or_less(artifact: BuiltArtifact) -> None:
    assert changed(artifact, "logits", shape=(-1, -1)) == changed(artifact, "logits", shape=(3, 61))


def test_names_must_agree(artifact: BuiltArtifact) -> None:
    tensors = network_tensors(artifact)
    del tensors["conv_state_0"]
    with pytest.raises(EngineError, match=r"the engine: expected .* found no conv_state_0: run hybridge build-engine"):
        binding_plan(artifact.config, artifact.record, tensors)
    extra = [*artifact.record.bindings, {**artifact.record.bindings[-1], "name": "more"}]
    with pytest.raises(EngineError, match=r"engine\.json: expected .* found also more"):
        binding_plan(artifact.config, replace(artifact.record, bindings=extra), network_tensors(artifact))


def test_a_record_of_another_export_is_refused(artifact: BuiltArtifact) -> None:
    record = replace(artifact.record, max_seq_len=47)
    with pytest.raises(EngineError, match=r"engine\.json: past_key_0: expected .*47, 10.*found .*48, 10"):
        binding_plan(artifact.config, record, network_tensors(artifact))
    one_profile = replace(artifact.record, profiles=artifact.record.profiles[:1])
    with pytest.raises(EngineError, match="profiles prefill and decode, found"):
        binding_plan(artifact.config, one_profile, network_tensors(artifact))


def test_swapped_profiles_are_refused(artifact: BuiltArtifact) -> None:
    prefill, decode = artifact.record.profiles
    swapped = [replace(prefill, name=decode.name), replace(decode, name=prefill.name)]
    with pytest.raises(EngineError, match=r"profile decode to take 1 token a row, found \d+: run hybridge"):
        binding_plan(artifact.config, replace(artifact.record, profiles=swapped), network_tensors(artifact))
