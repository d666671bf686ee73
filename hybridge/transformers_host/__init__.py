"""Behind a transformers model: ``accelerate`` swaps its text model, and ``generate()`` stays transformers' own."""

from hybridge.transformers_host.accelerate import Acceleration, accelerate

__all__ = ["Acceleration", "accelerate"]
