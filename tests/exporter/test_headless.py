"""An export without its head ends in the hidden states of every token, for callers that bring their own head."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import torch
from transformers import AutoModelForCausalLM

from hybridge import LLM, verify
from hybridge.artifact.errors import ArtifactError
from hybridge.artifact.names import HIDDEN_STATES
from hybridge.runtime.engines import create_dense_engine
from hybridge.runtime.engines.dense import StepInputs
from tests.support.artifacts import ArtifactCache, Exported

LENGTHS = (7, 3)


@pytest.fixture(scope="module", params=[("nemotron_h", {}), ("llama", {"tie_word_embeddings": True})], ids=str)
def exported(request: pytest.FixtureRequest, artifacts: ArtifactCache) -> Exported:
    model_type, overrides = request.param
    return artifacts.get(model_type, "float32", overrides, head=False)


@pytest.mark.parametrize("engine_name", ["onnxruntime", "onnxruntime-portable"])
def test_hidden_states_are_those_of_transformers(exported: Exported, engine_name: str) -> None:
    model = AutoModelForCausalLM.from_pretrained(exported.checkpoint, dtype=torch.float32).eval()
    ids = np.random.default_rng(0).integers(3, 97, (2, max(LENGTHS)))
    engine = create_dense_engine(exported.folder, engine_name)
    states = engine.allocate_states(2, 32)
    found = engine.step(StepInputs(ids, np.array(LENGTHS, np.int32), np.zeros(2, np.int32)), states).copy()
    assert found.shape == (2, max(LENGTHS), engine.config.hidden_size)
    for row, length in enumerate(LENGTHS):
        with torch.inference_mode():
            expected = model.model(torch.from_numpy(ids[row : row + 1, :length])).last_hidden_state[0].numpy()
        assert np.linalg.norm(found[row, :length] - expected) < 1e-5 * np.linalg.norm(expected)


def test_graph_has_no_head(exported: Exported) -> None:
    graph = onnx.load(exported.folder / "model.onnx", load_external_data=False).graph
    assert graph.output[0].name == HIDDEN_STATES == exported.config.result.name
    assert exported.config.all_logits
    assert "lm_head.weight" not in {tensor.name for tensor in graph.initializer}


def test_generation_and_verify_want_logits(exported: Exported) -> None:
    with pytest.raises(ArtifactError, match="expected an artifact that gives logits, found one that ends in hidden_"):
        LLM(exported.folder)
    with pytest.raises(ArtifactError, match="export the checkpoint with hybridge export"):
        verify(exported.checkpoint, exported.folder)
