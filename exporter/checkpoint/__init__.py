"""Reading a Hugging Face checkpoint folder: found, validated and scanned, never loaded."""

from exporter.checkpoint.checkpoint import Checkpoint, open_checkpoint

__all__ = ["Checkpoint", "open_checkpoint"]
