"""From checkpoint to artifact: reads a Hugging Face checkpoint, traces our own model of it, writes the ONNX folder."""
