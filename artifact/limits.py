"""Limits of untrusted input, all in one place; docs/reference/security.md lists them.

A limit is several times what the largest published checkpoint needs, and small enough that a hostile file causes an
error within seconds and within the memory of a small device.
"""

from __future__ import annotations

from typing import Final

KIB: Final = 1 << 10
MIB: Final = 1 << 20
GIB: Final = 1 << 30

# config.json, manifest.json, engine.json, tokenizer_config.json, a shard index: the largest published index is 13 MB.
JSON_BYTES: Final = 64 * MIB
# Nested objects and lists of such a file: published ones have at most 8 levels; Python recurses in most work on them.
JSON_DEPTH: Final = 64
# Values in its lists and objects: the largest published index has some 200,000.
JSON_VALUES: Final = 1 << 20
# Sizes, counts and offsets of a file are integers of 64 bits.
LARGEST_INTEGER: Final = (1 << 63) - 1
# Layers of a model: the deepest published one has 160. Work on an artifact may take the square of their number.
LAYERS: Final = 10_000
# Positions of a sequence: engines and kernels count them in 32 bits.
POSITIONS: Final = (1 << 31) - 1
# Sequences of a batch, each with a row in tables: devices have memory for some hundreds.
ROWS: Final = 1 << 16
# safetensors' own reference implementation refuses larger headers.
SAFETENSORS_HEADER_BYTES: Final = 100_000_000
# Axes of one tensor; NumPy 1 refuses more than 32, weights have at most 4.
TENSOR_AXES: Final = 8
# model.onnx and mtp.onnx hold no weights: 4 MB for 100 layers, 30 MB for 30,000 nodes of experts.
ONNX_BYTES: Final = 256 * MIB
# tokenizer.json and the other vocabulary files: the largest published one is 34 MB.
TOKENIZER_BYTES: Final = 128 * MIB
# One chat template: published ones have at most 30 kB.
TEMPLATE_BYTES: Final = 1 * MIB
# Chat templates of a checkpoint, in files or in tokenizer_config.json: published checkpoints have at most 3.
TEMPLATE_FILES: Final = 64
# The header of a saved session: its tokens are at most 8 bytes of text each, for 16 million of them.
SESSION_HEADER_BYTES: Final = 128 * MIB
# A saved session or pinned prefix: keys and values of 1 million tokens at 64 KiB each.
SESSION_BYTES: Final = 64 * GIB
# A compiled kernel or tactic in a cache folder: the largest has 0.4 MB.
CACHE_ENTRY_BYTES: Final = 64 * MIB
# A grammar or JSON schema that an answer follows, and the processor time and memory to compile it: one of 20,000
# choices takes 0.2 s.
GRAMMAR_BYTES: Final = 512 * KIB
GRAMMAR_SECONDS: Final = 5.0
GRAMMAR_MEMORY: Final = 2 * GIB
# Saved sessions of one client of a server.
SESSIONS: Final = 1024
# The API keys of a server: 10,000 keys with names.
API_KEYS_BYTES: Final = 1 * MIB
# A build preset has ten lines; a server's configuration has ten for each model.
PRESET_BYTES: Final = 64 * KIB
# Processor seconds and memory of one rendering of a chat template, in its own process: 1,000 messages take
# 0.1 s; the interpreter with Jinja takes 50 MiB of addresses, a conversation some 6 times its text.
TEMPLATE_SECONDS: Final = 5.0
TEMPLATE_MEMORY: Final = 512 * MIB
# Messages, tools and variables of one rendering: 1 million tokens are about 5 MB of text.
CONVERSATION_BYTES: Final = 32 * MIB
# Messages, and tools, of one rendering: 1 million tokens at 16 a message.
CONVERSATION_MESSAGES: Final = 1 << 16
# A tokenizer of unknown cost: processor seconds for loading it, and for each text. 10 MB of vocabulary load
# in 0.5 s, 1 million tokens are made in 3 s; both take 200 bytes for each byte.
TOKENIZER_SECONDS: Final = 20.0
TOKENIZER_MEMORY: Final = 2 * GIB
# The text of an evaluation, tokenized as a whole: that of WikiText-2 has 1.3 MB.
EVALUATION_TEXT_BYTES: Final = 16 * MIB

# Limits of one request, so that none delays the steps of others. OpenAI's API allows 128 answers,
# 20 log-probabilities and 4 stop texts.
REQUEST_ANSWERS: Final = 128
REQUEST_LOGPROBS: Final = 64
REQUEST_STOP_TEXTS: Final = 128
# All stop texts together: every new token is compared with all of them.
REQUEST_STOP_CHARACTERS: Final = 8 * KIB
REQUEST_STOP_TOKENS: Final = 1024
REQUEST_BIASED_TOKENS: Final = 1024
REQUEST_ALLOWED_TOKENS: Final = 1 << 20
REQUEST_BAD_WORDS: Final = 1024
REQUEST_BAD_WORD_CHARACTERS: Final = 64 * KIB
REQUEST_LOGITS_PROCESSORS: Final = 16
REQUEST_CHECKPOINTS: Final = 64
REQUEST_NAMESPACE_CHARACTERS: Final = 1024
# Values in the JSON of a request to the server, and objects among them: to check them takes up to 0.5 s.
REQUEST_VALUES: Final = 1 << 21
REQUEST_OBJECTS: Final = 1 << 17
# Logits of prompt tokens that one step computes for prompt_logprobs: a step of 64 rows has as many for sampling.
PROMPT_LOGITS_BYTES: Final = 64 * MIB
