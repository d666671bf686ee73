"""Kernels of whole-model decode that are not operators of the exported graph: problems of plain sizes and plans."""
