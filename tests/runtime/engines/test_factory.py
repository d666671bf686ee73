"""The engine factory: names, lazy import and errors that say what to do."""

import subprocess
import sys
from pathlib import Path

import pytest

from artifact.errors import ArtifactError, EngineError, UnsupportedError
from runtime.engines import create_engine
from runtime.engines.factory import ENGINES, EngineOptions, check_engine


@pytest.mark.parametrize("name", ["tensorrt", "torch"])
def test_an_engine_to_come_says_so(name: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=f"the {name} engine is not available yet: use --engine onnxruntime"):
        create_engine(tmp_path, name)


def test_an_engine_is_checked_without_an_artifact() -> None:
    for name in ENGINES:
        if name in ("tensorrt", "torch"):
            with pytest.raises(UnsupportedError, match=name):
                check_engine(name)
        else:
            check_engine(name)


def test_an_unknown_engine_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(
        EngineError, match="expected one of auto, onnxruntime, onnxruntime-portable, tensorrt, torch, found 'cuda'"
    ):
        create_engine(tmp_path, "cuda")


def test_a_missing_folder_is_an_artifact_error(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="expected a folder written by hybridge export, found nothing"):
        create_engine(tmp_path / "absent")


def test_a_folder_that_is_no_artifact_is_an_artifact_error(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="found another folder: give such a folder"):
        create_engine(tmp_path)


@pytest.mark.parametrize("name", ["auto", "onnxruntime", "onnxruntime-portable"])
def test_a_missing_library_names_the_extra_to_install(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(EngineError, match=r"pip install --editable '.*\[cpu\]'"):
        create_engine(tmp_path, name)


@pytest.mark.parametrize("threads", [0, -1, 1.5])
def test_bad_thread_counts_are_refused(threads: int) -> None:
    with pytest.raises(EngineError, match="threads: expected an integer of at least 1"):
        EngineOptions(threads=threads)


def test_the_runtime_imports_no_heavy_library() -> None:
    heavy = ("torch", "transformers", "onnxruntime", "tensorrt", "tensorrt_rtx", "exporter")
    code = f"import sys, runtime.llm, runtime.benchmark; print([m for m in {heavy!r} if m in sys.modules])"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert output.strip() == "[]"
