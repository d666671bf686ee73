"""The operators as ``torch.ops.trt_edgellm.*``; torch is imported by the functions, not by this module."""

from __future__ import annotations

from collections.abc import Callable


def register() -> None:
    """Define ``torch.ops.trt_edgellm.<name>`` for every operator, with eager and fake forms; safe to call again."""
    from hybridge.trt_plugins.torch_ops.registration import register_all

    register_all()


def onnx_translations() -> dict[Callable, Callable]:
    """Torch operator to a function that emits its ONNX node, for ``custom_translation_table`` of torch.onnx.export.

    Registers the torch operators and the ONNX schemas, which the translations need.
    """
    from hybridge.trt_plugins.torch_ops.translations import translation_table

    return translation_table()
