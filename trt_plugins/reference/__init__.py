"""Eager PyTorch forms of the operators: what every other face must equal."""
