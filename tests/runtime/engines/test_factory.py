"""The engine factory: names, lazy import and errors that say what to do."""

import contextlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hybridge.artifact.errors import ArtifactError, EngineError, SettingError
from hybridge.runtime.engines import create_dense_engine
from hybridge.runtime.engines.factory import ENGINE_NAMES, ENGINES, EngineKind, EngineOptions, check_engine
from hybridge.runtime.engines.paged_factory import create_paged_engine
from hybridge.trt_plugins.build.target import Machine
from tests.runtime.onnxruntime.hand_made import HandMade
from tests.runtime.onnxruntime.hand_made_plan import Plan
from tests.runtime.toy_engine import ToyEngine, toy_config


def test_an_engine_is_checked_without_an_artifact(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, Machine((), None))
    for name in ENGINES:
        if name == "tensorrt":
            with pytest.raises(EngineError, match=name):
                check_engine(name)
        else:
            check_engine(name)


def use(monkeypatch: pytest.MonkeyPatch, machine: Machine) -> None:
    """Make ``machine`` the one that the tensorrt engine finds."""
    monkeypatch.setattr("hybridge.runtime.engines.tensorrt.selection.this_machine", lambda: machine)


def test_tensorrt_says_what_the_machine_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for machine, words in (
        (
            Machine(("tensorrt_rtx",), None),
            "needs an NVIDIA GPU and its driver, found none: use `engine='onnxruntime'`",
        ),
        (Machine((), "8.6"), "needs the Python module tensorrt or tensorrt_rtx, found neither"),
    ):
        use(monkeypatch, machine)
        with pytest.raises(EngineError, match=words):
            create_dense_engine(tmp_path, "tensorrt")


def test_auto_says_why_an_engine_that_was_built_does_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime", reason="the onnxruntime engine takes over")
    folder = HandMade(Plan()).write(tmp_path / "artifact")
    use(monkeypatch, Machine(("tensorrt_rtx",), None))
    with contextlib.closing(create_dense_engine(folder)) as engine:
        assert (engine.name, engine.notes) == ("onnxruntime", ())
    (folder / "engines" / "rtx-ada").mkdir(parents=True)
    (folder / "engines" / "rtx-ada" / "engine.json").write_text("{}")
    with contextlib.closing(create_dense_engine(folder)) as engine:
        (note,) = engine.notes
    assert engine.name == "onnxruntime"
    assert note.startswith(
        "onnxruntime runs the artifact, as no TensorRT engine can (the tensorrt engine needs an NVIDIA GPU"
    )
    use(monkeypatch, Machine(("tensorrt_rtx",), "8.9"))
    monkeypatch.setattr("hybridge.runtime.engines.tensorrt.selection.cuda_core", lambda: None)
    with contextlib.closing(create_dense_engine(folder)) as engine:
        (note,) = engine.notes
    assert "rtx-ada (" in note and f"run hybridge build-engine {folder} --target rtx-ada" in note


def test_auto_is_tensorrt_where_an_engine_fits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = []

    def create(folder: Path, options: EngineOptions) -> ToyEngine:
        taken.append(options.engine_folder)
        return ToyEngine(toy_config())

    monkeypatch.setitem(ENGINES, "tensorrt", EngineKind(lambda: None, create))
    monkeypatch.setattr("hybridge.runtime.engines.tensorrt.selection.find_engine", lambda folder: None)
    folder = HandMade(Plan()).write(tmp_path / "artifact")
    create_dense_engine(folder, options=EngineOptions(engine_folder="mine"))
    (folder / "engines").mkdir()
    create_dense_engine(folder)
    assert taken == ["mine", None]


def test_auto_needs_no_onnxruntime_where_tensorrt_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    monkeypatch.setitem(ENGINES, "tensorrt", EngineKind(lambda: None, lambda folder, options: ToyEngine(toy_config())))
    check_engine("auto")


def test_an_unknown_engine_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=f"expected one of {', '.join(ENGINE_NAMES)}, found 'cuda'"):
        create_dense_engine(tmp_path, "cuda")


def test_a_missing_folder_is_an_artifact_error(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="expected a folder written by hybridge export, found nothing"):
        create_dense_engine(tmp_path / "absent")


def test_a_folder_that_is_no_artifact_is_an_artifact_error(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="found another folder: give such a folder"):
        create_dense_engine(tmp_path)


@pytest.mark.parametrize(
    ("name", "library", "extra"),
    [
        ("auto", "onnxruntime", "cpu"),
        ("onnxruntime", "onnxruntime", "cpu"),
        ("onnxruntime-portable", "onnxruntime", "cpu"),
        ("torch", "torch", "torch"),
        ("tensorrt-network", "torch", "torch"),
    ],
)
def test_a_missing_library_names_the_extra_to_install(
    name: str, library: str, extra: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(EngineError, match=rf"needs the package {library}.*pip install --editable '.*\[{extra}\]'"):
        create_dense_engine(tmp_path, name)


@pytest.mark.parametrize("threads", [0, -1, 1.5, 1025])
def test_bad_thread_counts_are_refused(threads: int) -> None:
    with pytest.raises(SettingError, match=f"threads: expected an integer from 1 to 1024, found {threads}"):
        EngineOptions(threads=threads)


def test_weights_that_are_gone_are_named_with_the_folder(tmp_path: Path) -> None:
    folder = HandMade(Plan()).write(tmp_path / "artifact")
    for path in (folder / "weights").iterdir():
        path.unlink()
    with pytest.raises(
        ArtifactError, match=f"^{folder}: expected the file .*weights/.*, found none: export the checkpoint again$"
    ):
        create_dense_engine(folder, "onnxruntime")


@pytest.mark.parametrize("name", ["onnxruntime", "onnxruntime-portable", "torch"])
@pytest.mark.parametrize("create", [create_dense_engine, create_paged_engine])
def test_only_tensorrt_takes_the_folder_of_an_engine(create: Callable[..., object], name: str, tmp_path: Path) -> None:
    folder = HandMade(Plan()).write(tmp_path / "artifact")
    with pytest.raises(SettingError, match=f"engine_folder: expected none for the engine {name}, found 'mine'"):
        create(folder, name, EngineOptions(engine_folder="mine"))


def test_the_runtime_imports_no_heavy_library() -> None:
    heavy = ("torch", "transformers", "onnxruntime", "tensorrt", "tensorrt_rtx", "hybridge.exporter")
    modules = "hybridge.runtime.llm, hybridge.runtime.benchmark"
    code = f"import sys, {modules}; print([m for m in {heavy!r} if m in sys.modules])"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert output.strip() == "[]"
