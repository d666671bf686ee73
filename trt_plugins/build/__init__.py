"""Engine builds: an artifact in, a TensorRT engine out. Imports TensorRT only in the building process, torch never."""

from hybridge.trt_plugins.build.builder import build_engine, engine_folder
from hybridge.trt_plugins.build.options import BuildOptions
from hybridge.trt_plugins.build.presets import preset_names

__all__ = ["BuildOptions", "build_engine", "engine_folder", "preset_names"]
