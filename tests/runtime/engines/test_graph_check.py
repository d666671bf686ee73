"""A graph that is not the one of its config.json is refused by name, before a step."""

import shutil
from pathlib import Path

import onnx
import pytest

from hybridge.artifact.errors import ArtifactError
from hybridge.runtime.engines import create_dense_engine
from hybridge.runtime.engines.paged_factory import create_paged_engine
from tests.runtime.onnxruntime.hand_made import HandMade
from tests.runtime.onnxruntime.hand_made_plan import Plan
from tests.support.artifacts import ArtifactCache

ENGINES = ("onnxruntime", "onnxruntime-portable", "torch")


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("no byte", "expected the inputs that config.json declares, found no context_lengths:"),
        ("renamed input", "expected the inputs that config.json declares, found no past_lengths:"),
        ("no logits", "expected the outputs that config.json declares, found no logits:"),
    ],
)
def test_another_graph_is_refused_by_name(engine: str, change: str, words: str, tmp_path: Path) -> None:
    pytest.importorskip("torch" if engine == "torch" else "onnxruntime", reason="the engine")
    folder = HandMade(Plan()).write(tmp_path / "artifact")
    write_other_graph(folder / "model.onnx", change)
    with pytest.raises(ArtifactError, match=f"artifact/model.onnx: {words} copy the whole artifact again"):
        create_dense_engine(folder, engine)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_paged_artifact_with_the_graph_of_a_dense_one_is_refused(
    engine: str, tmp_path: Path, artifacts: ArtifactCache
) -> None:
    pytest.importorskip("torch" if engine == "torch" else "onnxruntime", reason="the engine")
    paged = artifacts.get("nemotron_h", "float32", layout="paged").folder
    folder = tmp_path / "artifact"
    shutil.copytree(paged, folder)
    dense = HandMade(Plan()).write(tmp_path / "dense")
    (folder / "model.onnx").write_bytes((dense / "model.onnx").read_bytes())
    with pytest.raises(ArtifactError, match=r"the inputs that config\.json declares, found no block_table"):
        create_paged_engine(folder, engine)


def write_other_graph(path: Path, change: str) -> None:
    if change == "no byte":
        path.write_bytes(b"")
        return
    model = onnx.load(path, load_external_data=False)
    if change == "renamed input":
        (lengths,) = (value for value in model.graph.input if value.name == "past_lengths")
        lengths.name = "mask"
    else:
        (logits,) = (value for value in model.graph.output if value.name == "logits")
        model.graph.output.remove(logits)
    onnx.save(model, path)
