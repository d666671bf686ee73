"""Speed of the CUDA kernels beside measured peers: ``python -m benchmarks.kernels --json``. Needs a CUDA GPU."""
