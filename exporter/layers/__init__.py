"""Torch modules of the decoder, built from a DecoderConfig; traced for export, and runnable with real weights."""
