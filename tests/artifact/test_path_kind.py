"""What a path is, and the message for a path of the wrong kind."""

from __future__ import annotations

from pathlib import Path

import pytest

from hybridge.artifact.errors import ArtifactError, CheckpointError, UnsupportedError, located
from hybridge.artifact.extras import install_command
from hybridge.artifact.path_kind import PathKind, kind_of_path, require_artifact, require_checkpoint


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Relative paths, as users give them."""
    monkeypatch.chdir(tmp_path)
    for name, text in {
        "checkpoint/config.json": '{"model_type": "llama"}',
        "checkpoint/manifest.json": '{"name": "of another tool"}',
        "weights-only/model.safetensors": "",
        "artifact/manifest.json": '{"manifest_version": 1}',
        "artifact/config.json": "{ damaged",
        "artifact/model.onnx": "",
        "artifact/engines/rtx/engine.json": '{"engine_version": 1}',
        "artifact/engines/rtx/model.engine": "",
        "no-manifest/config.json": '{"bindings": {}}',
        "engine/engine.json": "{ damaged",
        "other/notes.txt": "mine",
    }.items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(text)


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("checkpoint", PathKind.CHECKPOINT),
        ("weights-only", PathKind.CHECKPOINT),
        ("artifact", PathKind.ARTIFACT),
        ("no-manifest", PathKind.ARTIFACT),
        ("artifact/engines/rtx", PathKind.ENGINE),
        ("artifact/engines/rtx/model.engine", PathKind.ENGINE),
        ("artifact/engines/rtx/engine.json", PathKind.ENGINE),
        ("engine", PathKind.ENGINE),
        ("artifact/model.onnx", PathKind.MODEL),
        ("artifact/engines", PathKind.FOLDER),
        ("other", PathKind.FOLDER),
        ("other/notes.txt", PathKind.FILE),
        ("nowhere", PathKind.NOTHING),
        ("nowhere/model.engine", PathKind.NOTHING),
    ],
)
def test_kinds(path: str, kind: PathKind) -> None:
    assert kind_of_path(Path(path)) is kind


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("checkpoint", "^checkpoint: .* found a checkpoint: run hybridge export checkpoint OUT and give OUT"),
        (
            "artifact/engines/rtx",
            r"found a TensorRT engine: give artifact \(hybridge inspect artifact/engines/rtx shows",
        ),
        ("artifact/engines/rtx/model.engine", "found a TensorRT engine: give artifact "),
        ("engine", r"found a TensorRT engine: give such a folder \(hybridge inspect engine "),
        ("artifact/model.onnx", "found the ONNX file of an exported folder: give artifact$"),
        ("artifact/engines", "found another folder inside one: give artifact$"),
        ("other", "found another folder: give such a folder"),
        ("nowhere", "found nothing: check the path"),
    ],
)
def test_no_artifact(path: str, words: str) -> None:
    with pytest.raises(ArtifactError, match=words):
        require_artifact(Path(path))


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("artifact", "found a folder written by hybridge export: give the checkpoint that it was exported from"),
        ("artifact/engines/rtx", "found a TensorRT engine"),
        ("checkpoint/config.json", "found a file: give the folder that holds it"),
        ("nowhere", "^nowhere: expected a checkpoint folder, found nothing: download"),
    ],
)
def test_no_checkpoint(path: str, words: str) -> None:
    with pytest.raises(CheckpointError, match=words):
        require_checkpoint(Path(path))


def test_possible_folders_pass() -> None:
    require_artifact(Path("artifact"))
    require_checkpoint(Path("checkpoint"))
    require_checkpoint(Path("other"))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("config.json: x: expected y", "checkpoint/config.json: x: expected y"),
        ("checkpoint/config.json: broken", "checkpoint/config.json: broken"),
        ("checkpoint: no weights", "checkpoint: no weights"),
        ("checkpoint2: x", "checkpoint: checkpoint2: x"),
        ("unsupported model_type", "checkpoint: unsupported model_type"),
        ("../other/notes.txt: x", "checkpoint: ../other/notes.txt: x"),
        ("{here}/checkpoint/config.json: broken", "checkpoint/config.json: broken"),
        ("expected the file {here}/checkpoint/x, found none", "checkpoint: expected the file checkpoint/x, found none"),
    ],
)
def test_errors_are_located(text: str, found: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError) as caught, located(Path("checkpoint")):
        raise UnsupportedError(text.format(here=tmp_path))
    assert str(caught.value) == found


@pytest.mark.parametrize("text", ["x" * 300 + ": broken", "a\0b: broken"])
def test_a_sentence_that_is_no_file_name_is_not_cut(text: str) -> None:
    """Looking for a file of that name would fail itself, and hide the error."""
    with pytest.raises(CheckpointError) as caught, located(Path("checkpoint")):
        raise CheckpointError(text)
    assert str(caught.value) == f"checkpoint: {text}"


def test_other_errors_are_not_located() -> None:
    with pytest.raises(ValueError, match=r"^x$"), located(Path("checkpoint")):
        raise ValueError("x")


def test_install_command(tmp_path: Path) -> None:
    assert install_command("cpu", tmp_path) == "pip install 'hybridge[cpu]'"
    (tmp_path / "pyproject.toml").touch()
    assert install_command("cpu", tmp_path) == "pip install --editable '.[cpu]'"
    assert install_command("cpu", tmp_path.resolve()) == "pip install --editable '.[cpu]'"
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "pyproject.toml").touch()
    assert install_command("rtx", tmp_path / "tree") == f"pip install --editable '{tmp_path}/tree[rtx]'"
