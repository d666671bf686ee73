"""Computes the network that TensorRT's parser makes from an artifact, layer by layer, on the CPU without a GPU."""
