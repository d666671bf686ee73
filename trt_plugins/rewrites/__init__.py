"""Rewrites of a graph's operators: several that meet become one. Imports neither torch nor TensorRT."""
