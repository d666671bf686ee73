"""Calls of public packages' kernels, one module a package, which imports it only when a call is made.

Each function takes tensors as our operator does, brings them into the layout that the package wants, and returns what
is timed: it runs the package's kernels and returns the operator's outputs.
"""
