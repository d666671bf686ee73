"""Differences between full TensorRT (10.x, 11.x) and TensorRT-RTX (1.x); everything else is common to both."""

from __future__ import annotations

import contextlib
import importlib
from pathlib import Path
from typing import Any

from hybridge.artifact.errors import EngineError
from hybridge.artifact.limits import CACHE_ENTRY_BYTES
from hybridge.artifact.untrusted_file import has_file, read_inside
from hybridge.trt_plugins.build.capability import sm_name
from hybridge.trt_plugins.build.target import TENSORRT_RTX
from hybridge.trt_plugins.plugins.aliasing import aliasing_feature

# https://docs.nvidia.com/deeplearning/tensorrt/latest/getting-started/release-notes-10/10.15.1.html
_NEEDED_LAYER, _NEEDED_SINCE = "IKVCacheUpdateLayer", "10.15"


class TensorRTLibrary:
    """One imported TensorRT module. ``trt`` is the module itself, ``version`` its version."""

    def __init__(self, name: str) -> None:
        """Import the module ``name``; EngineError when that fails."""
        try:
            self.trt: Any = importlib.import_module(name)
        except (ImportError, OSError) as error:
            raise EngineError(f"the Python module {name} cannot be imported ({error}): install it again") from error
        self.name = name
        self.version: str = self.trt.__version__

    @property
    def is_rtx(self) -> bool:
        return self.name == TENSORRT_RTX

    def create_builder(self, logger: Any) -> Any:
        """A builder; EngineError when TensorRT is too old or cannot create one (full TensorRT, no usable driver)."""
        if not hasattr(self.trt, _NEEDED_LAYER):
            raise EngineError(
                f"expected {self.name} {_NEEDED_SINCE} or newer, which has layers for attention and its caches, found "
                f"{self.version}: update it (on a Jetson, JetPack 7.2 has 10.16)"
            )
        try:
            builder = self.trt.Builder(logger)
        except (TypeError, RuntimeError):  # the bindings' answer to a builder that was not made
            builder = None
        if builder is None:
            raise EngineError(f"{self.name} {self.version} found no usable GPU or driver: build on the device")
        return builder

    def create_network(self, builder: Any) -> Any:
        """A strongly typed network: tensors have the types that the ONNX graph gives them."""
        # Versions without the flag know no other kind of network.
        flag = getattr(self.trt.NetworkDefinitionCreationFlag, "STRONGLY_TYPED", None)
        return builder.create_network(0 if flag is None else 1 << int(flag))

    def use_full_float32(self, config: Any) -> None:
        """Multiply float32 matrices in float32: TF32 would keep 10 bits of the states' mantissas."""
        flag = getattr(self.trt.BuilderFlag, "TF32", None)
        if flag is not None:
            config.clear_flag(flag)

    def set_targets(self, config: Any, capabilities: list[str], hardware_compatible: bool) -> None:
        """Choose the devices; full TensorRT builds for the local GPU, or for all of Ampere and newer."""
        if self.is_rtx:
            config.num_compute_capabilities = len(capabilities)
            for index, capability in enumerate(capabilities):
                config.set_compute_capability(self._compute_capability(capability), index)
        elif hardware_compatible:
            config.hardware_compatibility_level = self.trt.HardwareCompatibilityLevel.AMPERE_PLUS

    def alias_plugin_states(self, config: Any) -> bool:
        """Let plugins update states in place; False where this version cannot (TensorRT before 10.3)."""
        feature = aliasing_feature(self.trt)
        if feature is None:
            return False
        config.set_preview_feature(feature, True)
        return True

    def load_timing_cache(self, config: Any, path: Path | None) -> Any:
        """Reuse the kernel times in ``path``; TensorRT-RTX measures none when it builds, so it has no cache.

        Returns the cache, which must live until the engine is built.
        """
        if self.is_rtx:
            return None
        content = b""
        if path is not None and has_file(path.parent, path.name):
            content = read_inside(path.parent, path.name, CACHE_ENTRY_BYTES, EngineError, "remove it")
        cache = config.create_timing_cache(content)
        # A cache of another version or device is refused: start with an empty one.
        if cache is None or not config.set_timing_cache(cache, False):
            cache = config.create_timing_cache(b"")
            config.set_timing_cache(cache, False)
        return cache

    def save_timing_cache(self, cache: Any, path: Path) -> None:
        """Write the cache that ``load_timing_cache`` returned, if there is one."""
        if cache is not None:
            path.write_bytes(bytes(memoryview(cache.serialize())))

    def _compute_capability(self, capability: str) -> Any:
        with contextlib.suppress(AttributeError):
            return getattr(self.trt.ComputeCapability, sm_name(capability).upper())
        raise EngineError(
            f"{self.name} {self.version} cannot target compute capability {capability}: use a version that does"
        )
