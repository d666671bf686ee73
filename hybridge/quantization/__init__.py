"""Quantise the weights of a checkpoint."""
