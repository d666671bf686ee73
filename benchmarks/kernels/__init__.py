"""Speed of the CUDA kernels beside measured peers: ``python -m benchmarks kernels``. Needs a CUDA GPU."""
