"""CUDA kernels of the operators: compile (NVRTC), cache, load, plan and launch. Imports neither torch nor TensorRT."""
