"""Steps over states of 8 bits on a GPU against the same artifact on the CPU."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="the torch engine needs torch")

from hybridge.artifact.dtypes import DType
from hybridge.runtime.engines.torch.engine import TorchEngine
from hybridge.runtime.engines.torch.paged_engine import TorchPagedEngine
from hybridge.runtime.llm import LLM
from hybridge.runtime.serving.settings import ServingSettings
from hybridge.runtime.speculation import SpeculationSettings
from tests.runtime.torch.test_dense_kernel_calls import decoded
from tests.runtime.torch.test_paged_kernel_calls import run_steps
from tests.runtime.torch.test_state_8bit_calls import MODELS, check_close
from tests.support.artifacts import ArtifactCache

pytestmark = pytest.mark.gpu
families = pytest.mark.parametrize("family", list(MODELS))
states = pytest.mark.parametrize("state", [DType.INT8, DType.UINT8])


def folder_of(artifacts: ArtifactCache, family: str, state: DType, layout: str):
    pytest.importorskip("onnxscript", reason="needs the export extra (onnxscript)")
    options = {"dtype": DType.FLOAT32, "state_dtype": state, "layout": layout, "max_batch_size": 8, "max_seq_len": 96}
    return artifacts.get(family, "bfloat16", MODELS[family][0], **options).folder


@families
@states
def test_packed_steps_agree_with_the_cpu(family: str, state: DType, artifacts: ArtifactCache) -> None:
    folder = folder_of(artifacts, family, state, "paged")
    gpu, cpu = (run_steps(TorchPagedEngine(folder, device=device), None)[0] for device in ("cuda", "cpu"))
    check_close(gpu, cpu)


@families
def test_dense_steps_agree_with_the_cpu(family: str, artifacts: ArtifactCache) -> None:
    folder = folder_of(artifacts, family, DType.INT8, "dense")
    check_close(*(decoded(TorchEngine(folder, device=device), 40, 4) for device in ("cuda", "cpu")))


def test_recorded_steps_and_drafts_give_the_answer_of_the_cpu(artifacts: ArtifactCache) -> None:
    folder = folder_of(artifacts, "nemotron_h", DType.INT8, "paged")
    prompt, found = [5, 6, 7, 8] * 6, []
    for engine, speculation in (("onnxruntime", None), ("torch", None), ("torch", SpeculationSettings(3))):
        with LLM(folder, engine, serving=ServingSettings(speculation=speculation)) as llm:
            found.append(llm.generate(prompt, max_new_tokens=24).token_ids)
    assert found[0] == found[1] == found[2]
