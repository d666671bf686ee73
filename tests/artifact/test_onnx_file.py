"""Where the weights of a graph may lie, and which files are read as graphs at all."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from hybridge.artifact.errors import ArtifactError
from hybridge.artifact.limits import ONNX_BYTES
from hybridge.artifact.onnx_file import check_stored_weights, read_onnx, stored_weights
from tests.support.fuzzing import RandomInput, fuzzed


def external(name: str = "w", dims: tuple[int, ...] = (2, 3), dtype: int = TensorProto.FLOAT, **entries: str):
    tensor = TensorProto(name=name, data_type=dtype, dims=dims, data_location=TensorProto.EXTERNAL)
    for key, value in {"location": "weights/w", **entries}.items():
        tensor.external_data.add(key=key, value=value)
    return tensor


def model_of(*weights: TensorProto, nodes: tuple[onnx.NodeProto, ...] = ()) -> onnx.ModelProto:
    return helper.make_model(helper.make_graph(list(nodes), "g", [], [], initializer=list(weights)))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "artifact"
    (folder / "weights").mkdir(parents=True)
    (folder / "weights" / "w").write_bytes(bytes(32))
    return folder


def save(folder: Path, model: onnx.ModelProto) -> onnx.ModelProto:
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    found = read_onnx(folder, "model.onnx")
    check_stored_weights(folder, found.model, "model.onnx")
    return found.model


def test_weights_that_lie_in_the_artifact(folder: Path) -> None:
    model = model_of(external(), external("v", (0,), offset="32"), external("x", (4, 2), offset="0", length="32"))
    assert save(folder, model) == model
    first, empty, whole = stored_weights(model, "")
    assert (first.nbytes, empty.nbytes, empty.offset, whole.shape) == (24, 0, 32, (4, 2))
    assert read_onnx(folder, "model.onnx").raw == (folder / "model.onnx").read_bytes()


@pytest.mark.parametrize(
    ("weight", "words"),
    [
        (external(location="/etc/passwd"), "expected a file inside"),
        (external(location="../w"), "expected a file inside"),
        (external(location="weights/../../w"), "expected a file inside"),
        (external(location=""), "expected a file inside"),
        (external(location="a\0b"), "expected a file inside"),
        (external(location="weights"), "found a folder"),
        (external(location="weights/none"), "found none"),
        (external(offset="9"), "expected at least 33 bytes for w, found 32"),
        (external(offset="-1"), "expected a number of bytes as offset"),
        (external(offset="\u0663"), "expected a number of bytes as offset"),
        (external(offset="1" * 5000), "expected a number of bytes as offset"),
        (external(offset=str(2**63 - 1)), "a size that a file can have"),
        (external(length="x"), "expected a number of bytes as length"),
        (external(length="23"), "expected length 24"),
        (external(dims=(-1, -6)), "sizes of at least 0"),
        (external(dims=(2**62, 4)), "a size that a file can have"),
        (external(dims=(2**63 - 1,) * 8), "a size that a file can have"),
        (external(dims=(1,) * 9), "at most 8 sizes"),
        (external(dtype=TensorProto.STRING), "expected one of the ONNX data types"),
        (external(dtype=99), "expected one of the ONNX data types"),
    ],
)
def test_impossible_weights(folder: Path, weight: TensorProto, words: str) -> None:
    with pytest.raises(ArtifactError, match=words):
        save(folder, model_of(weight))


@pytest.mark.parametrize("target", ["file", "folder"])
def test_weights_behind_a_link_that_leaves_the_artifact(folder: Path, target: str) -> None:
    (folder.parent / "outside").mkdir()
    (folder.parent / "outside" / "w").write_bytes(bytes(32))
    (folder / "weights" / "w").unlink()
    if target == "file":
        (folder / "weights" / "w").symlink_to("../../outside/w")
    else:
        (folder / "weights").rmdir()
        (folder / "weights").symlink_to("../outside")
    with pytest.raises(ArtifactError, match="found a link that leaves it"):
        save(folder, model_of(external()))


def branch(tensor: TensorProto) -> onnx.NodeProto:
    return helper.make_node("If", ["c"], ["y"], then_branch=helper.make_graph([], "b", [], [], initializer=[tensor]))


def function_with(tensor: TensorProto) -> onnx.ModelProto:
    model = model_of()
    node = helper.make_node("Constant", [], ["y"], value=tensor)
    model.functions.append(helper.make_function("d", "f", [], ["y"], [node], [helper.make_opsetid("", 20)]))
    return model


def sparse_with(tensor: TensorProto) -> onnx.ModelProto:
    model = model_of()
    model.graph.sparse_initializer.add(values=tensor)
    return model


HIDDEN: dict[str, Callable[[TensorProto], onnx.ModelProto]] = {
    "attribute": lambda t: model_of(nodes=(helper.make_node("Constant", [], ["y"], value=t),)),
    "attributes": lambda t: model_of(nodes=(helper.make_node("Constant", [], ["y"], value=[t]),)),
    "branch": lambda t: model_of(nodes=(branch(t),)),
    "branch of a branch": lambda t: model_of(
        nodes=(helper.make_node("If", ["c"], ["y"], then_branch=helper.make_graph([branch(t)], "b", [], [])),)
    ),
    "function": function_with,
    "sparse": sparse_with,
}


@pytest.mark.parametrize("place", HIDDEN)
def test_only_initializers_of_the_main_graph_lie_elsewhere(folder: Path, place: str) -> None:
    """onnx_ir and ONNX Runtime would read these by themselves."""
    with pytest.raises(ArtifactError, match="only as initializers of the main graph, found 'w'"):
        save(folder, HIDDEN[place](external(location="/etc/passwd")))
    save(folder, HIDDEN[place](numpy_helper.from_array(np.zeros(2, np.float32), "w")))


def test_files_that_are_no_graph(folder: Path) -> None:
    path = folder / "model.onnx"
    path.write_bytes(b"\xff" * 40)
    with pytest.raises(ArtifactError, match="expected an ONNX model"):
        read_onnx(folder, "model.onnx")
    os.truncate(path, ONNX_BYTES + 1)
    with pytest.raises(ArtifactError, match=f"expected at most {ONNX_BYTES} bytes"):
        read_onnx(folder, "model.onnx")
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(ArtifactError, match="found a pipe"):
        read_onnx(folder, "model.onnx")


KEYS = ("location", "location", "offset", "length", "checksum", "", "é")
ENTRIES = ("weights/w", "weights/w", "weights", "..", ".", "/", "0", "8", "24", "-8", "1e3", "", str(2**63), "\0", "é")
DIMS = (*range(-3, 10), 2**31, 2**62, 2**63 - 1, -(2**63))


@fuzzed(1500)
def test_fuzzed_weights(folder: Path, random: RandomInput) -> None:
    """Any entries give weights inside their files, or a typed error."""
    model = model_of()
    for _ in range(random.randint(1, 3)):
        tensor = model.graph.initializer.add(name="w", data_type=random.randint(-1, 30))
        tensor.data_location = TensorProto.EXTERNAL
        tensor.dims.extend(random.choice(DIMS) for _ in range(random.randrange(10)))
        for _ in range(random.randrange(5)):
            tensor.external_data.add(key=random.choice(KEYS), value=random.choice(ENTRIES))
    raw = model.SerializeToString()
    (folder / "model.onnx").write_bytes(raw if random.chance(0.8) else raw[: random.randrange(len(raw))])
    try:
        found = read_onnx(folder, "model.onnx").model
        check_stored_weights(folder, found, "model.onnx")
    except ArtifactError:
        return
    for weight in stored_weights(found, ""):
        assert os.path.realpath(folder / weight.location).startswith(os.path.realpath(folder))
        assert 0 <= weight.offset <= weight.offset + weight.nbytes <= (folder / weight.location).stat().st_size


@fuzzed(1500)
def test_fuzzed_bytes(folder: Path, random: RandomInput) -> None:
    whole = model_of(external(), external("v", offset="24", length="8")).SerializeToString()
    data = random.randbytes(random.randrange(200)) if random.chance(0.2) else random.spliced(whole)
    (folder / "fuzzed.onnx").write_bytes(data)
    with contextlib.suppress(ArtifactError):
        check_stored_weights(folder, read_onnx(folder, "fuzzed.onnx").model, "fuzzed.onnx")
