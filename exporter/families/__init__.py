"""Model families: each file reads one Hugging Face config into a DecoderConfig; the registry lists them."""
