"""A conversation with a model; each turn is computed once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hybridge.artifact.errors import RequestError
from hybridge.runtime.generation.results import Piece
from hybridge.runtime.llm import LLM
from hybridge.runtime.sampling import SamplingParams


class Conversation:
    """Turns with the model of ``llm``, through the checkpoint's chat template or, without one, as one running text.

    Earlier turns keep the token ids that the model read and wrote, as far as the template renders them unchanged, so
    that the prefix cache of ``llm`` can reuse their states.
    """

    def __init__(self, llm: LLM, system: str | None = None) -> None:
        """system: text of the first message. RequestError where the checkpoint has no template to put it in, or no
        tokenizer."""
        if llm.tokenizer is None:
            raise RequestError("expected an artifact with a tokenizer, found none: give token ids to LLM.generate")
        self.uses_template = llm.chat_template.exists
        if system is not None and not self.uses_template:
            raise RequestError(
                "system: expected a checkpoint with a chat template, found none: write it in front of the prompt"
            )
        self._llm, self._tokenizer, self._system = llm, llm.tokenizer, system
        self.reset()

    def reset(self) -> None:
        """Forget all turns."""
        self._messages: list[dict[str, str]] = []
        if self._system is not None:
            self._messages.append({"role": "system", "content": self._system})
        # What the model read and wrote so far: its tokens, and texts that may replace them in a later prompt.
        self._ids: tuple[int, ...] = ()
        self._texts: tuple[tuple[str, tuple[int, ...]], ...] = ()

    def ask(self, text: str, sampling: SamplingParams) -> Iterator[Piece]:
        """The pieces of the answer to ``text``. Closing the iterator ends the answer; its text so far is remembered.

        RequestError, at the first piece, when the conversation has become longer than the model's limit; the turn is
        then not remembered.
        """
        messages = [*self._messages, {"role": "user", "content": text}]
        shown = self._llm.chat_template.render(messages) if self.uses_template else text
        prompt = self._prompt(shown)
        pieces = self._llm.generate(prompt, sampling, stream=True)
        answer: list[int] = []
        written = ""
        try:
            for piece in pieces:
                answer += piece.token_ids
                written += piece.text
                yield piece
        finally:
            pieces.close()  # type: ignore[attr-defined]  # a generator, which keeps the state when it is closed
            if answer:
                self._messages = [*messages, {"role": "assistant", "content": written}]
                self._remember(shown, prompt, answer, written)

    def _prompt(self, shown: str) -> list[int]:
        """The tokens of ``shown``; where it begins with the earlier turns, their original tokens."""
        if not self.uses_template:
            if not self._ids:
                return self._tokenizer.encode(shown)
            return [*self._ids, *self._tokenizer.encode(f"\n{shown}", add_special_tokens=False)]
        for known, ids in self._texts:
            if shown.startswith(known):
                return [*ids, *self._tokenizer.encode(shown[len(known) :], add_special_tokens=False)]
        return self._tokenizer.encode(shown, add_special_tokens=False)

    def _remember(self, shown: str, prompt: Sequence[int], answer: Sequence[int], written: str) -> None:
        ended = answer[-1] in self._llm.eos_token_ids
        end = self._tokenizer.decode(answer[-1:], skip_special_tokens=False) if ended else ""
        open_ids = (*prompt, *(answer[:-1] if ended else answer))
        self._ids = open_ids
        # Templates may strip whitespace from an answer, and end it with another token than the model does.
        texts = [shown + part for part in (written, written.lstrip(), written.rstrip(), written.strip())]
        closed = [(text + end, (*prompt, *answer)) for text in texts] if ended else []
        self._texts = (*closed, *((text, open_ids) for text in texts))
