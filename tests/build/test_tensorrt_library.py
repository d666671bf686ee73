"""What the adapter asks of full TensorRT and of TensorRT-RTX.

Full TensorRT is played by the classes of tensorrt_rtx, from which the doubles are specified: a method or attribute
that does not exist fails the test. The two share their Python interface.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import create_autospec

import pytest

from hybridge.artifact.errors import EngineError
from hybridge.trt_plugins.build import tensorrt_library
from hybridge.trt_plugins.build.tensorrt_library import TensorRTLibrary

trt = pytest.importorskip("tensorrt_rtx", reason="needs the tensorrt-rtx package")


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> TensorRTLibrary:
    """The adapter of a module called tensorrt."""
    monkeypatch.setattr(tensorrt_library.importlib, "import_module", lambda name: trt)
    return TensorRTLibrary("tensorrt")


@pytest.fixture
def rtx() -> TensorRTLibrary:
    return TensorRTLibrary("tensorrt_rtx")


@pytest.fixture
def config() -> Any:
    builder = trt.Builder(trt.Logger(trt.Logger.ERROR))
    config = builder.create_builder_config()
    yield config
    # The configuration must not outlive its builder.
    del config, builder


def test_a_module_that_cannot_be_imported_is_named() -> None:
    with pytest.raises(EngineError, match="module tensorrt_none cannot be imported"):
        TensorRTLibrary("tensorrt_none")


def test_a_builder_that_is_refused_is_an_error(full: TensorRTLibrary) -> None:
    full.trt = SimpleNamespace(Builder=lambda logger: None, IKVCacheUpdateLayer=trt.IKVCacheUpdateLayer)
    with pytest.raises(EngineError, match="no usable GPU or driver"):
        full.create_builder(None)


def test_an_old_tensorrt_is_refused_by_its_version(full: TensorRTLibrary) -> None:
    full.trt, full.version = SimpleNamespace(), "10.3.0"
    with pytest.raises(EngineError, match=r"expected tensorrt 10\.15 or newer, .* found 10\.3\.0: .*JetPack 7\.2"):
        full.create_builder(None)


def test_networks_are_strongly_typed(rtx: TensorRTLibrary) -> None:
    builder = rtx.create_builder(trt.Logger(trt.Logger.ERROR))
    assert rtx.create_network(builder).get_flag(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED)


def test_a_version_without_the_flag_gets_none(full: TensorRTLibrary) -> None:
    full.trt = SimpleNamespace(NetworkDefinitionCreationFlag=SimpleNamespace())
    builder = create_autospec(trt.Builder, instance=True)
    full.create_network(builder)
    builder.create_network.assert_called_once_with(0)


def test_float32_is_not_rounded(rtx: TensorRTLibrary, config: Any) -> None:
    assert config.get_flag(trt.BuilderFlag.TF32)
    rtx.use_full_float32(config)
    assert not config.get_flag(trt.BuilderFlag.TF32)


def test_rtx_targets_are_set(rtx: TensorRTLibrary, config: Any) -> None:
    rtx.set_targets(config, ["8.6", "12.0"], hardware_compatible=False)
    assert config.num_compute_capabilities == 2
    found = [config.get_compute_capability(index) for index in range(2)]
    assert found == [trt.ComputeCapability.SM86, trt.ComputeCapability.SM120]


def test_a_target_unknown_to_the_version_is_refused(rtx: TensorRTLibrary, config: Any) -> None:
    with pytest.raises(EngineError, match=r"cannot target compute capability 8\.7"):
        rtx.set_targets(config, ["8.7"], hardware_compatible=False)


@pytest.mark.parametrize("compatible", [False, True])
def test_full_tensorrt_builds_for_the_local_gpu_or_for_all(full: TensorRTLibrary, compatible: bool) -> None:
    config = create_autospec(trt.IBuilderConfig, instance=True)
    before = config.hardware_compatibility_level
    full.set_targets(config, ["8.6", "8.9"], hardware_compatible=compatible)
    level = trt.HardwareCompatibilityLevel.AMPERE_PLUS if compatible else before
    assert config.hardware_compatibility_level == level
    config.set_compute_capability.assert_not_called()


def timing_config(accepts: list[bool]) -> Any:
    config = create_autospec(trt.IBuilderConfig, instance=True)
    config.create_timing_cache.side_effect = lambda content: SimpleNamespace(serialize=lambda: b"new", seed=content)
    config.set_timing_cache.side_effect = accepts
    return config


def test_timing_cache_is_reused_and_written(full: TensorRTLibrary, tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    old.write_bytes(b"old")
    cache = full.load_timing_cache(timing_config([True]), old)
    full.save_timing_cache(cache, new)
    assert (cache.seed, new.read_bytes()) == (b"old", b"new")


def test_foreign_timing_cache_is_replaced(full: TensorRTLibrary, tmp_path: Path) -> None:
    old = tmp_path / "old"
    old.write_bytes(b"of another GPU")
    config = timing_config([False, True])
    assert full.load_timing_cache(config, old).seed == b""
    assert config.set_timing_cache.call_count == 2


def test_first_build_starts_an_empty_timing_cache(full: TensorRTLibrary, tmp_path: Path) -> None:
    assert full.load_timing_cache(timing_config([True]), tmp_path / "absent").seed == b""


def test_rtx_has_no_timing_cache(rtx: TensorRTLibrary, tmp_path: Path) -> None:
    config = create_autospec(trt.IBuilderConfig, instance=True)
    cache = rtx.load_timing_cache(config, tmp_path / "old")
    rtx.save_timing_cache(cache, tmp_path / "new")
    config.create_timing_cache.assert_not_called()
    assert not (tmp_path / "new").exists()
