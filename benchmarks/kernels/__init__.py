"""Speed of the CUDA kernels compared with measured peers: ``python -m benchmarks kernels``. Needs a CUDA GPU."""
