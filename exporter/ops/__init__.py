"""The operators that a decoder is traced with, one file each: its meaning in torch, a fake, and its ONNX nodes.

torch.onnx would decompose what they compute into many small nodes; these keep the nodes that ONNX Runtime and TensorRT
have kernels for.
"""
