"""Parts of the demo checkpoint trainer; the command is `tools/train_demo_checkpoint.py`."""
