"""The Python interface for generating text from an artifact."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, cast, overload

from artifact.errors import EngineError, RequestError
from runtime.engines import Engine
from runtime.engines.factory import AUTO, EngineOptions
from runtime.engines.paged import PagedEngine
from runtime.generation import DenseStreams, Generation, Piece, Prefix
from runtime.generation.call import Messages, Sampling, conversations_of, params_of_prompts
from runtime.generation.request import Prompt, is_one_prompt
from runtime.generation.results import generations_of
from runtime.model_text import ModelText
from runtime.prefix_cache.metrics import CacheReport
from runtime.sampling import SamplingParams
from runtime.serving.cache_control import CacheControl, conversation_tokens
from runtime.serving.draft_model import ModelDrafter
from runtime.serving.mtp_drafter import MtpDrafter
from runtime.serving.open import open_engine, open_loop, refuse_paged_settings
from runtime.serving.open_drafter import with_opened_drafter
from runtime.serving.pinned import PinnedPrefix, read_prefixes
from runtime.serving.sessions import Session
from runtime.serving.settings import ServingSettings
from runtime.serving.stream import PieceStreams

Tools = Sequence[Mapping[str, Any]] | None


class LLM:
    """An artifact with an engine, a tokenizer and the prefixes kept for it. Not for use from several threads at once.

    ``engine`` is a name ("auto", "onnxruntime", ...) or an Engine over the same artifact. ``max_batch_size`` and
    ``max_seq_len`` may lower the engine's limits; ``threads`` are CPU threads; ``engine_folder``
    names the TensorRT engine to run, a folder or one in path/engines. An artifact without tokenizer.json
    still takes and returns token ids. ``serving`` settles pools and order for an artifact of layout paged.

        with LLM("out") as llm:
            for piece in llm.generate("Once upon a time", max_new_tokens=64, stream=True):
                print(piece.text, end="")
    """

    def __init__(
        self,
        path: str | Path,
        engine: str | Engine | PagedEngine = AUTO,
        max_batch_size: int | None = None,
        max_seq_len: int | None = None,
        threads: int | None = None,
        engine_folder: str | Path | None = None,
        serving: ServingSettings | None = None,
    ) -> None:
        """Load the artifact folder ``path``. ArtifactError: not a valid artifact. EngineError: no such engine."""
        self.folder = folder = Path(path)
        options = EngineOptions(threads, engine_folder)
        with ExitStack() as opened:
            # An Engine, or a PagedEngine where the artifact's layout is paged.
            if isinstance(engine, str):
                engine = opened.enter_context(closing(open_engine(folder, engine, options)))
            self.engine: Any = engine
            self.config = self.engine.config.require_logits()
            self._text = text = ModelText(folder, self.config)
            self.tokenizer, self.chat_template = text.tokenizer, text.chat_template
            self.eos_token_ids = text.eos_token_ids
            self._streams: DenseStreams | PieceStreams
            self._cache: CacheControl | None = None
            self._drafter: ModelDrafter | MtpDrafter | None = None
            if isinstance(self.engine, PagedEngine):
                settings = (serving or ServingSettings()).limited(max_batch_size, max_seq_len)
                settings, self._drafter = with_opened_drafter(self.engine, settings, text)
                if self._drafter is not None:
                    opened.enter_context(closing(self._drafter))
                self.loop = open_loop(self.engine, settings, text)
                self._streams, self._cache = PieceStreams(self.loop), CacheControl(self.loop, folder)
                self.max_batch_size, self.max_seq_len = self.loop.shape.max_rows, self.loop.shape.max_seq_len
            else:
                refuse_paged_settings(serving, self.config)
                self.max_batch_size = _lowered("max_batch_size", max_batch_size, self.engine.max_batch_size)
                self.max_seq_len = _lowered("max_seq_len", max_seq_len, self.engine.max_seq_len)
                self._streams = DenseStreams(self.engine, self.max_batch_size, self.eos_token_ids, self.tokenizer)
            opened.pop_all()

    @property
    def recommended_sampling(self) -> SamplingParams:
        """What the checkpoint's generation_config.json asks for; never applied unless it is passed to a call."""
        return self._text.recommended_sampling

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Release the engine and the prefixes; calling it twice is allowed."""
        if isinstance(self._streams, DenseStreams):
            self._streams.prefixes.clear()
        if self._drafter is not None:
            self._drafter.close()
        self._text.close()
        self.engine.close()

    @overload
    def generate(
        self,
        prompt: str | list[int] | tuple[int, ...],
        sampling: Sampling = ...,
        max_new_tokens: int | None = ...,
        stream: Literal[False] = ...,
    ) -> Generation: ...

    @overload
    def generate(
        self,
        prompt: list[str] | list[list[int]],
        sampling: Sampling = ...,
        max_new_tokens: int | None = ...,
        stream: Literal[False] = ...,
    ) -> list[Generation]: ...

    @overload
    def generate(
        self, prompt: Any, sampling: Sampling = ..., max_new_tokens: int | None = ..., *, stream: Literal[True]
    ) -> Iterator[Piece]: ...

    @overload
    def generate(
        self, prompt: Any, sampling: Sampling = ..., max_new_tokens: int | None = ..., stream: bool = ...
    ) -> Generation | list[Generation] | Iterator[Piece]: ...

    def generate(
        self,
        prompt: Prompt | Sequence[Prompt],
        sampling: Sampling = None,
        max_new_tokens: int | None = None,
        stream: bool = False,
    ) -> Generation | list[Generation] | Iterator[Piece]:
        """Continue a prompt (text or token ids) or each of a list of prompts.

        ``sampling`` is greedy by default, one for all prompts or a list of one per prompt (``recommended_sampling``
        is what the checkpoint asks for). ``max_new_tokens`` goes before that of ``sampling``; with neither it is
        256. More prompts than max_batch_size wait for a free row. Generation also ends at max_seq_len: the prompt
        and all but the last new token fit in it.

        One prompt gives a Generation (the others of ``n`` are its ``alternatives``), a list gives a list. With
        ``stream`` both give an iterator of pieces.
        RequestError, before anything is computed, names the prompt or parameter that is wrong.
        """
        single = is_one_prompt(prompt)
        prompts = [prompt] if single else list(prompt)
        return self._run(prompts, single, sampling, max_new_tokens, stream, add_special_tokens=True)

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
    ) -> Iterator[Piece]: ...

    @overload
    def chat(
        self,
        messages: Any,
        sampling: Sampling = ...,
        max_new_tokens: int | None = ...,
        stream: bool = ...,
        tools: Tools = ...,
        **variables: Any,
    ) -> Generation | list[Generation] | Iterator[Piece]: ...

    def chat(
        self,
        messages: str | Messages | Sequence[Messages],
        sampling: Sampling = None,
        max_new_tokens: int | None = None,
        stream: bool = False,
        tools: Tools = None,
        **variables: Any,
    ) -> Generation | list[Generation] | Iterator[Piece]:
        """Answer a conversation, or each of a list of them, through the checkpoint's chat template.

        ``messages`` are objects with "role" and "content"; a text is one message of the user. ``tools`` and
        ``variables`` reach the template. The rest is as in ``generate``. RequestError when the checkpoint has no
        template or the template refuses the messages.
        """
        single, conversations = conversations_of(messages)
        prompts = [self.chat_template.render(c, tools, **variables) for c in conversations]
        # The template has written the special tokens itself.
        return self._run(prompts, single, sampling, max_new_tokens, stream, add_special_tokens=False)

    def cache_prefix(self, prompt: Prompt | Messages, name: str | None = None) -> Prefix | PinnedPrefix:
        """Compute the state after ``prompt`` once; later prompts whose tokens begin with it start from there.

        ``prompt`` is text, token ids or the first messages of conversations (a system prompt). Only equal tokens
        count: a text is tokenized alone, so let it end where a token ends. The prefix stays until it is dropped.
        A paged artifact needs a prefix cache of kind "radix" for it, and keeps the prefix by ``name``. RequestError
        when its pools are too small for it.
        """
        request = self._text.prefix_request(prompt, self.max_seq_len, name)
        streams = self._streams
        if isinstance(streams, DenseStreams):
            return streams.prefixes.add(request.prompt_ids)
        return self._control().pin(request.prompt_ids, name, lambda: list(streams.pieces([request])))

    def cache_prefixes(self, path: str | Path) -> list[PinnedPrefix]:
        """``cache_prefix`` for all of a JSON file {"prefixes": {name: text, token ids or messages}}, paged only."""
        self._control()
        return [cast(PinnedPrefix, self.cache_prefix(prompt, name)) for name, prompt in read_prefixes(Path(path))]

    def drop_prefix(self, prefix: Prefix | PinnedPrefix | str) -> None:
        """Forget ``prefix``, of a paged artifact also by its name, and free its memory."""
        if isinstance(prefix, Prefix):
            if not isinstance(self._streams, DenseStreams):
                raise RequestError("expected a prefix of this artifact, found one of a dense artifact: use its own")
            self._streams.prefixes.remove(prefix)
        else:
            self._control().drop(prefix.name if isinstance(prefix, PinnedPrefix) else prefix)

    def save_session(self, path: str | Path, conversation: Generation | Sequence[int]) -> Session:
        """Write what is known of a conversation (tokens, KV and states) to the file ``path``, whole or not at all.

        ``conversation`` is an answer, which stands for its prompt too, or token ids. For paged artifacts with a prefix
        cache of kind "radix". RequestError when the cache does not know these tokens any more.
        """
        return self._control().save(Path(path), conversation_tokens(conversation))

    def load_session(self, path: str | Path) -> Session:
        """Take a saved session into the prefix cache: a prompt that begins with its tokens goes on from there.

        RequestError when the file is damaged, of other weights or another version, or does not fit.
        """
        return self._control().load(Path(path))

    def prefix_cache_report(self) -> CacheReport:
        """Hits and misses with their reasons, what is held, what had to go; RequestError without a radix tree."""
        return self._control().report()

    def _run(
        self,
        prompts: Sequence[Any],
        single: bool,
        sampling: Sampling,
        max_new_tokens: int | None,
        stream: bool,
        add_special_tokens: bool,
    ) -> Generation | list[Generation] | Iterator[Piece]:
        requests = []
        for index, params in enumerate(params_of_prompts(sampling, max_new_tokens, len(prompts))):
            name = "prompt" if single else f"prompt {index}"
            requests.append(self._text.request(prompts[index], params, self.max_seq_len, name, add_special_tokens))
        pieces = self._streams.pieces(requests)
        if stream:
            return pieces
        generations = generations_of(pieces, len(prompts))
        return generations[0] if single else generations

    def _control(self) -> CacheControl:
        if self._cache is None:
            raise RequestError("expected an artifact of layout paged, found a dense one: export with --layout paged")
        return self._cache


def _lowered(name: str, value: int | None, limit: int) -> int:
    if value is None:
        return limit
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= limit:
        raise EngineError(f"{name}: expected an integer from 1 to the engine's {limit}, found {value!r}")
    return value
