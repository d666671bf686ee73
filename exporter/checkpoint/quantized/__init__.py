"""Quantised weights of checkpoints: one module for each way in which they are stored."""
