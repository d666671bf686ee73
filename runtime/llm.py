"""The Python interface for generating text from an artifact."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, overload

from hybridge.artifact.call_arguments import known_arguments
from hybridge.runtime.generation import Generation, Request
from hybridge.runtime.generation.call import Call, Messages, Sampling, call_of, conversations_of, split_options
from hybridge.runtime.generation.prompts import Prompt, prompts_of
from hybridge.runtime.generation.results import generations_of
from hybridge.runtime.llm_prefixes import PrefixMethods
from hybridge.runtime.loaded_artifact import LoadedArtifact
from hybridge.runtime.score import Score, score_requests
from hybridge.runtime.serving.stream import PieceStreams
from hybridge.runtime.turns import PieceStream, Turns

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from hybridge.runtime.generation.call import CallOptions

Tools = Sequence[Mapping[str, Any]] | None
OnePrompt = str | list[int] | tuple[int, ...] | dict[str, Any]
SeveralPrompts = list[str] | list[list[int]] | list[tuple[int, ...]] | list[dict[str, Any]]


@known_arguments
class LLM(PrefixMethods, LoadedArtifact):
    """An artifact with an engine, a tokenizer and a prefix cache.

    Any thread may call it; concurrent calls share steps. After ``close`` every call and every open stream raises
    RequestError.

    ``engine`` is a name ("auto", "onnxruntime", ...) or an engine over the same artifact. ``max_batch_size`` and
    ``max_seq_len`` may lower the engine's limits; ``threads`` are CPU threads; ``engine_folder``
    names the TensorRT engine to run, a folder or one in path/engines. An artifact without tokenizer.json
    works with token ids. ``serving`` sets pools, order, prefix cache and speculation. ``exact_products``: as in
    EngineOptions.

        with LLM("out") as llm:
            for piece in llm.generate("Once upon a time", max_new_tokens=64, stream=True):
                print(piece.text, end="")
    """

    def _on_open(self) -> None:
        self._turns = Turns()
        self._streams = PieceStreams(self.loop, self._turns.others_wait)

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End open streams, release the engine and the prefixes; may be called twice."""
        self._turns.close(self._release)

    @overload
    def generate(
        self,
        prompt: OnePrompt,
        sampling: Sampling = ...,
        max_new_tokens: int | None = ...,
        stream: Literal[False] = ...,
        **options: Unpack[CallOptions],
    ) -> Generation: ...

    @overload
    def generate(
        self,
        prompt: SeveralPrompts,
        sampling: Sampling = ...,
        max_new_tokens: int | None = ...,
        stream: Literal[False] = ...,
        **options: Unpack[CallOptions],
    ) -> list[Generation]: ...

    @overload
    def generate(
        self,
        prompt: Any = ...,
        sampling: Sampling = ...,
        max_new_tokens: int | None = ...,
        *,
        stream: Literal[True],
        **options: Unpack[CallOptions],
    ) -> PieceStream: ...

    @overload
    def generate(
        self,
        prompt: Any = ...,
        sampling: Sampling = ...,
        max_new_tokens: int | None = ...,
        stream: bool = ...,
        **options: Unpack[CallOptions],
    ) -> Generation | list[Generation] | PieceStream: ...

    def generate(
        self,
        prompt: Prompt | Sequence[Prompt] | None = None,
        sampling: Sampling = None,
        max_new_tokens: int | None = None,
        stream: bool = False,
        **options: Unpack[CallOptions],
    ) -> Generation | list[Generation] | PieceStream:
        """Continue a prompt (text or token ids) or each of a list of prompts.

        ``sampling`` is greedy by default, one for all prompts or a list with one per prompt (``recommended_sampling``
        has the checkpoint's values). ``max_new_tokens`` overrides that of ``sampling``; with neither it is 256. More
        prompts than max_batch_size wait for a free row. Generation also ends at max_seq_len, into which the prompt and
        all but the last new token must fit. Token ids may be an array or tensor, of two axes for several prompts.

        options: ``priority`` (of all, or a list with one per prompt; lower first) and ``namespace`` (cached prefixes
        are shared only within one); vLLM's names ``sampling_params``, ``max_tokens`` and ``prompt_token_ids`` for
        sampling, max_new_tokens and prompt.

        One prompt gives a Generation (the others of ``n`` are its ``alternatives``), a list gives a list. With
        ``stream`` both give an iterator of pieces. RequestError names an invalid prompt or parameter before anything is
        computed.
        """
        self._turns.check_open()
        call = call_of(sampling, max_new_tokens, options)
        single, prompts = prompts_of(prompt, call.token_ids)
        return self._run(prompts, single, call, stream, add_special_tokens=True)

    @overload
    def chat(
        self,
        messages: str | list[dict[str, Any]],
        sampling: Sampling = ...,
        max_new_tokens: int | None = ...,
        stream: Literal[False] = ...,
        tools: Tools = ...,
        **variables: Any,
    ) -> Generation: ...

    @overload
    def chat(
        self,
        messages: list[list[dict[str, Any]]],
        sampling: Sampling = ...,
        max_new_tokens: int | None = ...,
        stream: Literal[False] = ...,
        tools: Tools = ...,
        **variables: Any,
    ) -> list[Generation]: ...

    @overload
    def chat(
        self,
        messages: Any,
        sampling: Sampling = ...,
        max_new_tokens: int | None = ...,
        *,
        stream: Literal[True],
        tools: Tools = ...,
        **variables: Any,
    ) -> PieceStream: ...

    @overload
    def chat(
        self,
        messages: Any,
        sampling: Sampling = ...,
        max_new_tokens: int | None = ...,
        stream: bool = ...,
        tools: Tools = ...,
        **variables: Any,
    ) -> Generation | list[Generation] | PieceStream: ...

    def chat(
        self,
        messages: str | Messages | Sequence[Messages],
        sampling: Sampling = None,
        max_new_tokens: int | None = None,
        stream: bool = False,
        tools: Tools = None,
        **variables: Any,
    ) -> Generation | list[Generation] | PieceStream:
        """Answer a conversation, or each of a list of them, through the checkpoint's chat template.

        ``messages`` are objects with "role" and "content"; a text is one message of the user. ``tools`` and
        ``variables`` other than the options of ``generate`` are passed to the template. The rest is as in ``generate``.
        RequestError when the checkpoint has no template or the template refuses the messages.
        """
        self._turns.check_open()
        options, variables = split_options(variables)
        call = call_of(sampling, max_new_tokens, options)
        call.refuse_token_ids()
        single, conversations = conversations_of(messages)
        prompts = [self.chat_template.render(c, tools, **variables) for c in conversations]
        # The template writes the special tokens itself.
        return self._run(prompts, single, call, stream, add_special_tokens=False)

    @overload
    def score(self, prompt: OnePrompt, continuation: str | Sequence[int] | None = ...) -> Score: ...

    @overload
    def score(
        self, prompt: SeveralPrompts, continuation: Sequence[str] | Sequence[Sequence[int]] | None = ...
    ) -> list[Score]: ...

    @overload
    def score(self, prompt: Any, continuation: Any = ...) -> Score | list[Score]: ...

    def score(self, prompt: Any, continuation: Any = None) -> Score | list[Score]:
        """Log-probabilities of the tokens of ``continuation`` after a prompt, or of the prompt's own tokens.

        Prompts as in ``generate``; a list of them takes a list of continuations and gives a list. A continuation is
        text or token ids. RequestError names an invalid argument, or when both together exceed max_seq_len.
        """
        self._turns.check_open()
        single, scored = score_requests(self._text, prompt, continuation, self.max_seq_len)
        generations = self._generations([each.request for each in scored])
        scores = [each.score(generation) for each, generation in zip(scored, generations, strict=True)]
        return scores[0] if single else scores

    def _run(
        self, prompts: Sequence[Any], single: bool, call: Call, stream: bool, add_special_tokens: bool
    ) -> Generation | list[Generation] | PieceStream:
        requests = []
        for index, params in enumerate(call.params(len(prompts))):
            name = "prompt" if single else f"prompt {index}"
            requests.append(self._text.request(prompts[index], params, self.max_seq_len, name, add_special_tokens))
        if stream:
            return self._stream(requests, call)
        generations = self._generations(requests, call)
        return generations[0] if single else generations

    def _generations(self, requests: Sequence[Request], call: Call | None = None) -> list[Generation]:
        with closing(self._stream(requests, call, every=False)) as pieces:
            return generations_of(pieces, len(requests))

    def _stream(self, requests: Sequence[Request], call: Call | None, every: bool = True) -> PieceStream:
        ranks = None if call is None else call.priorities(len(requests))
        namespace = "" if call is None else call.namespace
        return self._turns.run(lambda: self._turns.stream(self._streams.pieces(requests, ranks, namespace, every)))
