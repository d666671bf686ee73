"""Compute capabilities: spelling, and what the CUDA driver says about the local GPU."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from hybridge.artifact.errors import SettingError
from hybridge.trt_plugins.build import capability
from hybridge.trt_plugins.build.capability import local_capability, normal_capability, sm_name


@pytest.mark.parametrize(
    ("text", "normal"), [("8.7", "8.7"), ("87", "8.7"), ("sm_87", "8.7"), ("SM120", "12.0"), (" 12.1 ", "12.1")]
)
def test_spellings(text: str, normal: str) -> None:
    assert normal_capability(text) == normal


@pytest.mark.parametrize("text", ["", "8", "ampere", "8.6.1", "-8.6", "8,6"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(SettingError, match="compute_capabilities"):
        normal_capability(text)


def test_short_name() -> None:
    assert sm_name("12.0") == "sm120"


class Driver:
    """The driver's functions as ctypes calls them; ``failing`` answers an error code."""

    def __init__(self, failing: str = "") -> None:
        self.failing = failing

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: 1 if name == self.failing else self._answer(name, *arguments)

    def _answer(self, name: str, *arguments: Any) -> int:
        if name == "cuDeviceGetAttribute":
            pointer, attribute, _ = arguments
            pointer._obj.value = {75: 8, 76: 9}[attribute]
        return 0


@pytest.mark.parametrize(
    ("failing", "expected"), [("", "8.9"), ("cuInit", None), ("cuDeviceGet", None), ("cuDeviceGetAttribute", None)]
)
def test_local_gpu(monkeypatch: pytest.MonkeyPatch, failing: str, expected: str | None) -> None:
    monkeypatch.setattr(capability.ctypes, "CDLL", lambda name: Driver(failing))
    assert local_capability() == expected


def test_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> ctypes.CDLL:
        raise OSError(name)

    monkeypatch.setattr(capability.ctypes, "CDLL", absent)
    assert local_capability() is None
