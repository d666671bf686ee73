"""Prefix cache: KV blocks and recurrent states of token sequences, kept for the next one that begins alike."""
