"""Kernels of whole-model decode that are no operators of the exported graph: a problem of plain sizes, and its plan."""
