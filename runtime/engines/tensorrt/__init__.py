"""TensorRT engines on a GPU. Importing this imports neither TensorRT nor CUDA."""

from hybridge.runtime.engines.tensorrt.engine import TensorRTEngine

__all__ = ["TensorRTEngine"]
