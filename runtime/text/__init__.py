"""Text and tokens: tokenizer, streaming detokenizer, stop strings and chat templates."""

from hybridge.runtime.text.chat_template import ChatTemplate
from hybridge.runtime.text.detokenizer import Detokenizer
from hybridge.runtime.text.stop_strings import StopStrings
from hybridge.runtime.text.tokenizer import Tokenizer

__all__ = ["ChatTemplate", "Detokenizer", "StopStrings", "Tokenizer"]
