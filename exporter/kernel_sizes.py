"""Whether the CUDA kernels run the sizes of a decoder's recurrent layers. No torch."""

from __future__ import annotations

from collections.abc import Iterator

from hybridge.artifact.errors import UnsupportedError
from hybridge.exporter.families.decoder_config import DecoderConfig
from hybridge.exporter.families.mamba1_config import Mamba1Config
from hybridge.exporter.families.recurrent_config import (
    GatedDeltaConfig,
    LightningAttentionConfig,
    MambaConfig,
    RecurrentConfig,
)
from hybridge.exporter.families.rg_lru import RgLruConfig
from hybridge.trt_plugins.catalog import OPS


def check_kernel_sizes(decoder: DecoderConfig) -> None:
    """UnsupportedError naming the first layer that the kernels cannot run, what was found and what they support.

    The limits are those that the operators declare. Attention needs no check: where its kernels take a head dim not,
    engines have another form.
    """
    for index, layer in enumerate(decoder.layers):
        for block in layer.blocks:
            gaps = (gap for body in block.bodies if isinstance(body, RecurrentConfig) for gap in _gaps(body))
            if (gap := next(gaps, None)) is not None:
                raise UnsupportedError(
                    f"layer {index} ({layer.layer_type}): {gap}; change the sizes of the model, or pass "
                    "`kernels='optional'` to export it for ONNX Runtime and for TensorRT's own layers"
                )


def _gaps(body: RecurrentConfig) -> Iterator[str]:
    """One sentence for each size that the kernels of ``body``'s operators do not take."""
    if body.recurrent.has_conv_state:
        conv = {"conv_dim": body.recurrent.conv_dim, "kernel": body.recurrent.conv_kernel}
        yield from OPS["causal_conv1d"].kernel_gaps(conv)
    match body:
        case LightningAttentionConfig():
            yield from OPS["update_ssm_state"].kernel_gaps({"head_dim": body.head_dim, "state_size": body.head_dim})
        case MambaConfig():
            yield from OPS["update_ssm_state"].kernel_gaps({"head_dim": body.head_dim, "state_size": body.state_size})
        case Mamba1Config():
            yield from OPS["selective_scan"].kernel_gaps({"state_size": body.state_size})
        case RgLruConfig():
            yield from OPS["selective_scan"].kernel_gaps({"state_size": 1})
        case GatedDeltaConfig():
            yield from OPS["gated_delta_rule"].kernel_gaps({"key_size": body.key_size, "value_size": body.value_size})
