"""Rounding weights in full precision to numbers of few bits."""
