"""ONNX functions in standard operators, so that any engine runs a graph that holds the domain's operators."""

from hybridge.trt_plugins.functions.attach import attach_functions, signature_from_node
from hybridge.trt_plugins.functions.catalog import function_for
from hybridge.trt_plugins.functions.signature import Signature

__all__ = ["Signature", "attach_functions", "function_for", "signature_from_node"]
