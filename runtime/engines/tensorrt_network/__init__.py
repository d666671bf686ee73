"""Computes the network that TensorRT's parser makes of an artifact, layer by layer, on the CPU: no GPU is needed."""
