"""Rewrites of traced programs: the same values from fewer and cheaper operators."""
