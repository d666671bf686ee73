"""The network that TensorRT's parser makes of an artifact, as plain data: layers, attributes, tensors and constants."""
