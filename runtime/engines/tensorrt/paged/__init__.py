"""Engines of paged artifacts."""
