"""Small tokenizers of the kinds that checkpoints use, written as a checkpoint's files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

SENTENCES = (
    "Call me Ishmael. Some years ago, never mind how long precisely, having little or no money in my purse,",
    "I thought I would sail about a little and see the watery part of the world. naïve café, Größe, 你好世界",
    "It is a way I have of driving off the spleen 🐳 and regulating the circulation. 👩‍👩‍👧 🇫🇷",
)
CONFIG: dict[str, Any] = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "bos_token": "<s>",
    "eos_token": "</s>",
    "clean_up_tokenization_spaces": False,
    "extra_special_tokens": ["<|end|>"],
}


def byte_level_tokenizer(folder: Path, add_bos: bool = True) -> Path:
    """A byte-level BPE of 400 tokens, with one added token that is not special and one outside ASCII."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<s>", "</s>", "<|end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(SENTENCES, trainer)
    backend.add_tokens([AddedToken("<think>", normalized=False), AddedToken("▁pad▁", normalized=False)])
    if add_bos:
        backend.post_processor = processors.TemplateProcessing(
            single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 0)]
        )
    return _write(folder, backend)


def byte_fallback_tokenizer(folder: Path) -> Path:
    """A BPE in the style of sentencepiece: spaces as a visible character, unknown characters as byte tokens."""
    backend = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    specials = ["<unk>", "<s>", "</s>", "<|end|>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=500, special_tokens=specials, show_progress=False)
    backend.train_from_iterator([s[:70].replace(" ", "▁") for s in SENTENCES], trainer)
    # The byte tokens belong to the model, not to the added tokens.
    data = json.loads(backend.to_str())
    data["added_tokens"] = [t for t in data["added_tokens"] if not t["content"].startswith("<0x")]
    return _write(folder, Tokenizer.from_str(json.dumps(data)))


def _write(folder: Path, backend: Tokenizer) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    backend.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(CONFIG))
    return folder
