"""The torch engine: an artifact on any CUDA GPU, or on the CPU, without TensorRT. The only engine that needs torch."""
