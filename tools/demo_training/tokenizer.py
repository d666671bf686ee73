"""A byte-level BPE tokenizer trained on the same text as the model."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from demo_training.chat import BOS, CHAT_TEMPLATE, EOS, PAD, SPECIAL_TOKENS


def tokenizer_from_text(texts: Iterable[str], vocab_size: int, max_length: int) -> Any:
    """A transformers tokenizer that round-trips any UTF-8 text and puts BOS before it.

    The result is deterministic: it depends on the texts and `vocab_size` alone.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator(texts, trainer=trainer)
    core.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A {BOS} $B", special_tokens=[(BOS, core.token_to_id(BOS))]
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        bos_token=BOS,
        eos_token=EOS,
        pad_token=PAD,
        additional_special_tokens=[token for token in SPECIAL_TOKENS if token not in (BOS, EOS, PAD)],
        model_max_length=max_length,
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer
