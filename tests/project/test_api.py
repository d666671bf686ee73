"""The names that ``import hybridge`` offers."""

from __future__ import annotations

import inspect as python_inspect
import pkgutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import hybridge

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("name", hybridge.__all__)
def test_every_public_name_exists_and_is_documented(name: str) -> None:
    assert python_inspect.getdoc(getattr(hybridge, name))


def test_unknown_names_are_attribute_errors() -> None:
    with pytest.raises(AttributeError, match="wings"):
        hybridge.wings  # noqa: B018


def test_public_names_and_subpackages_do_not_collide() -> None:
    """Importing a subpackage sets it as an attribute: a function of the same name would turn into a module."""
    modules = {module.name for module in pkgutil.iter_modules(hybridge.__path__)}
    assert not modules & set(hybridge.__all__)


def test_import_is_light() -> None:
    code = "import sys, hybridge; print(*(m for m in ('torch', 'onnx', 'numpy', 'onnxruntime') if m in sys.modules))"
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0 and not result.stdout.strip(), result.stdout + result.stderr


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda: hybridge.export("c", "o", **{"speculative_tokens": 2}),
            "expected an argument of export, .*: pass it to build_",
        ),
        (lambda: hybridge.export("c", "o", **{"max_seq_length": 2}), "max_seq_length: .*: use max_seq_len"),
        (lambda: hybridge.export(None, "o"), "checkpoint: expected a path, found None"),
        (lambda: hybridge.export("c", 5), "out: expected a path, found 5"),
        (lambda: hybridge.verify("c", b"o"), "out: expected a path, found b'o'"),
        (lambda: hybridge.build_engine("a\0b"), "out: expected a path, found"),
        (lambda: hybridge.inspect(None), "path: expected a path, found None"),
        (lambda: hybridge.inspect(""), "path: expected a path, found ''"),
        (lambda: hybridge.inspect("x" * 5000), "path: expected a shorter path, found 'xxx"),
        (lambda: hybridge.inspect(Path("x" * 5000)), "path: expected a shorter path, found 'xxx"),
        (lambda: hybridge.LLM(None), "path: expected a path, found None"),
        (lambda: hybridge.LLM("o", engine_folder=5), "engine_folder: expected a path, found 5"),
        (
            lambda: hybridge.AsyncLLM("o", **{"wings": 2}),
            "wings: expected an argument of AsyncLLM, found none .*: leave it out",
        ),
        (lambda: hybridge.ServingSettings(**{"memory": 2}), "memory: expected an argument of ServingSettings"),
    ],
)
def test_bad_arguments_are_named(call: Callable[[], object], words: str) -> None:
    with pytest.raises(hybridge.errors.SettingError, match=words):
        call()


def test_the_readme_example(tmp_path: Path) -> None:
    checkpoint = ROOT / "examples" / "checkpoints" / "tiny-nemotron-h"
    report = hybridge.export(checkpoint, tmp_path / "out", dtype="float16", max_seq_len=64)
    assert report.dtype == "float16"
    with hybridge.LLM(tmp_path / "out", engine="auto") as llm:
        pieces = llm.generate("Once upon a time", max_new_tokens=8, stream=True)
        assert "".join(piece.text for piece in pieces).strip()
        sampling = hybridge.SamplingParams(temperature=0.7, seed=1, max_new_tokens=4)
        assert len(llm.generate(["The sea", "A whale"], sampling=sampling)) == 2
    assert hybridge.inspect(tmp_path / "out").to_json()["dtype"] == "float16"
    with pytest.raises(hybridge.errors.OutputError):
        hybridge.export(checkpoint, tmp_path / "out")
