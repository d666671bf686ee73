"""Text and tokens: tokenizer, streaming detokenizer, stop strings and chat templates."""

from runtime.text.chat_template import ChatTemplate
from runtime.text.detokenizer import Detokenizer
from runtime.text.stop_strings import StopStrings
from runtime.text.tokenizer import Tokenizer

__all__ = ["ChatTemplate", "Detokenizer", "StopStrings", "Tokenizer"]
