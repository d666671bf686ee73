"""Every name that the code takes of a TensorRT module is there, in whichever TensorRT is installed."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from hybridge.artifact.errors import EngineError
from hybridge.trt_plugins.build.tensorrt_library import TensorRTLibrary
from tests.plugins.conftest import installed_tensorrt

NAME = installed_tensorrt()
trt = importlib.import_module(NAME)
ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("trt_plugins/plugins", "trt_plugins/build", "runtime/engines/tensorrt", "hybridge/inspection")
# What only TensorRT-RTX has, and the code takes where it is TensorRT-RTX.
ONLY_RTX = {"ComputeCapability", "DynamicShapesKernelSpecializationStrategy", "EngineValidity"}
ONLY_RTX |= {"EngineInvalidityDiagnostics"}


def chains(node: ast.AST) -> Iterator[tuple[str, ...]]:
    """Of ``trt.a.b`` and ``x.trt.a.b``: (a, b)."""
    inner = {id(found.value) for found in ast.walk(node) if isinstance(found, ast.Attribute)}
    for found in ast.walk(node):
        if isinstance(found, ast.Attribute) and id(found) not in inner:
            names: list[str] = []
            at: ast.expr = found
            while isinstance(at, ast.Attribute) and at.attr != "trt":
                names.insert(0, at.attr)
                at = at.value
            if isinstance(at, ast.Attribute) or (isinstance(at, ast.Name) and at.id == "trt"):
                yield tuple(names)


def names_taken() -> list[tuple[str, ...]]:
    files = sorted(path for folder in FOLDERS for path in (ROOT / folder).glob("*.py"))
    return sorted({chain for path in files for chain in chains(ast.parse(path.read_text(encoding="utf-8"))) if chain})


@pytest.mark.parametrize("chain", names_taken(), ids=".".join)
def test_the_module_has_the_name(chain: tuple[str, ...]) -> None:
    if chain[0] in ONLY_RTX:
        assert hasattr(trt, chain[0]) == (NAME == "tensorrt_rtx")
        return
    at = trt
    for name in chain:
        assert hasattr(at, name), f"{NAME} {trt.__version__}: {'.'.join(chain)}"
        at = getattr(at, name)


def test_names_were_found() -> None:
    assert {("Builder",), ("OnnxParser",), ("TensorFormat", "LINEAR"), ("Runtime",)} <= set(names_taken())


def test_networks_are_strongly_typed() -> None:
    """By a flag, whose number differs between versions, or because there is no other kind."""
    received: list[int] = []

    class Recorder:
        def create_network(self, flags: int) -> None:
            received.append(flags)

    TensorRTLibrary(NAME).create_network(Recorder())
    flag = getattr(trt.NetworkDefinitionCreationFlag, "STRONGLY_TYPED", None)
    assert received == [0 if flag is None else 1 << int(flag)]


@pytest.mark.skipif(NAME == "tensorrt_rtx", reason="needs full TensorRT: TensorRT-RTX builds without a GPU")
def test_a_builder_that_is_not_made_is_one_sentence() -> None:
    library = TensorRTLibrary(NAME)
    with pytest.raises(EngineError, match=r"^tensorrt 1.* found no usable GPU or driver: build on the device$"):
        library.create_builder(trt.Logger())
