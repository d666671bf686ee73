"""Rounding of full-precision weights to types of 4 and 8 bits."""
