"""Run an exported artifact and its checkpoint side by side and compare them, layer by layer."""
