"""Prefix cache: KV blocks and recurrent states of token sequences, reused by later prompts with the same prefix."""
