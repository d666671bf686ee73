"""Reading a Hugging Face checkpoint folder: config, shards, tensors, tokenizer files. No torch, nothing executed."""

from hybridge.exporter.checkpoint.checkpoint import Checkpoint, open_checkpoint

__all__ = ["Checkpoint", "open_checkpoint"]
