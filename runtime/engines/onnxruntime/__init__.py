"""ONNX Runtime on the CPU: the artifact's graph rewritten for its kernels, states bound in place."""

from runtime.engines.onnxruntime.engine import OnnxRuntimeEngine

__all__ = ["OnnxRuntimeEngine"]
