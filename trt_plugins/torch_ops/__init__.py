"""The operators as ``torch.ops.trt_edgellm.*``; torch is imported by the functions, not by this module."""

from __future__ import annotations


def register() -> None:
    """Define ``torch.ops.trt_edgellm.<name>`` for every operator, with eager and fake forms; safe to call again."""
    from hybridge.trt_plugins.torch_ops.registration import register_all

    register_all()
