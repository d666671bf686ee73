"""From torch modules to an ONNX file: operators, tracing, naming, weights by reference, checks."""
