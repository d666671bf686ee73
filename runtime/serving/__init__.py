"""Serves requests on a paged engine: executes plans, samples logits, returns pieces."""
