"""ONNX Runtime on the CPU: the artifact's graph rewritten for its kernels, states bound in place."""

from hybridge.runtime.engines.onnxruntime.engine import OnnxRuntimeEngine

__all__ = ["OnnxRuntimeEngine"]
