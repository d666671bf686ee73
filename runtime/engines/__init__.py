"""Inference engines behind one interface."""
