"""The head of an artifact on the kind of engine that its model runs on."""

from __future__ import annotations

from pathlib import Path

from hybridge.artifact.errors import EngineError
from hybridge.runtime.engines.mtp_head import MtpHead
from hybridge.runtime.engines.paged import PagedEngine


def open_mtp_head(folder: Path, model: PagedEngine, threads: int | None = None) -> MtpHead:
    """The head of the artifact in ``folder`` for ``model``; EngineError where that shows no hidden states."""
    if not model.shows_hidden_states:
        raise EngineError(
            f"speculation: expected an engine that shows hidden states to drafter 'mtp', found {model.name}: use "
            "torch or onnxruntime, or build a TensorRT engine with --speculative-tokens"
        )
    if model.name == "torch":
        from hybridge.runtime.engines.torch.mtp_head import TorchMtpHead
        from hybridge.runtime.engines.torch.paged_engine import TorchPagedEngine

        assert isinstance(model, TorchPagedEngine)
        return TorchMtpHead(folder, model)
    if model.name == "tensorrt":
        from hybridge.runtime.engines.tensorrt.paged.engine import TensorRTPagedEngine
        from hybridge.runtime.engines.tensorrt.paged.mtp_head import TensorRTMtpHead

        assert isinstance(model, TensorRTPagedEngine)
        return TensorRTMtpHead(folder, model)
    from hybridge.runtime.engines.onnxruntime.mtp_head import MtpHeadEngine

    return MtpHeadEngine(folder, threads)
