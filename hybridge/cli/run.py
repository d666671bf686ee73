"""hybridge run."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hybridge.cli.drafts import draft_settings, draft_summary
from hybridge.cli.engine_option import ENGINE_NAME
from hybridge.cli.failures import Interrupted
from hybridge.cli.generation_options import DRAFTS, PROMPTS, RECOMMENDED, SAMPLING, one_of, text_of
from hybridge.cli.generation_report import generation_document, generation_summary, interruption_summary
from hybridge.cli.options import ARTIFACT, CHECK, JSON, QUIET
from hybridge.cli.parser import FLAGS, Command, given, options_of
from hybridge.cli.terminal import Terminal
from hybridge.runtime.engines.factory import AUTO, EngineOptions
from hybridge.runtime.sampling.params import SamplingParams

if TYPE_CHECKING:
    from hybridge.runtime.generation import Generation
    from hybridge.runtime.llm import LLM

# The default, as in Python.
DEFAULT_NEW_TOKENS = 256


def _run(
    out: Path,
    prompt: str | None,
    prompt_file: Path | None,
    chat: str | None,
    prompt_ids: Sequence[int] | None,
    system: str | None,
    sampling: str | None,
    draft: str | None,
    draft_tokens: int | None,
    draft_sampling: bool,
    speculative_mode: str | None,
    engine: str | None,
    engine_folder: str | None,
    threads: int | None,
    exact_products: bool | None,
    check: bool,
    as_json: bool,
    quiet: bool,
    **parameters: Any,
) -> None:
    prompts = {"--prompt": prompt, "--prompt-file": prompt_file, "--chat": chat, "--prompt-ids": prompt_ids}
    chats = all(value is None for value in prompts.values()) and sys.stdin.isatty() and not as_json
    flag = "--chat" if chats else one_of(prompts)
    if system is not None and flag != "--chat":
        raise click.BadParameter(f"expected it with --chat or in a chat, found {flag}", param_hint="--system")
    click.get_current_context().meta[FLAGS] = {"prompt": flag, "messages": flag, "speculation": "--draft"}
    with Terminal(as_json, quiet) as terminal:
        from hybridge.artifact.manifest import check_artifact
        from hybridge.artifact.path_kind import require_artifact
        from hybridge.runtime.llm import LLM
        from hybridge.runtime.serving.settings import ServingSettings

        if check:
            require_artifact(out)
            check_artifact(out)
        chosen = {"max_new_tokens": DEFAULT_NEW_TOKENS, **given(parameters)}
        params = SamplingParams(**chosen)
        serving = draft_settings(out, draft, draft_tokens, speculative_mode, draft_sampling)
        text, message = text_of(prompt, prompt_file), text_of(chat)
        # The turns of a chat continue each other; a single answer needs no cache.
        serving = replace(serving or ServingSettings(), prefix_cache="radix" if chats else "off")
        exact = bool(exact_products)
        with LLM(out, engine or AUTO, None, None, threads, engine_folder, serving, exact) as llm:
            if sampling == RECOMMENDED:
                params = replace(llm.recommended_sampling, **chosen)
            if chats:
                from hybridge.cli.chat_loop import chat_loop
                from hybridge.runtime.conversation import Conversation

                chat_loop(llm, Conversation(llm, system), params, terminal)
                return
            messages = None if message is None else _messages(system, message)
            generation = _generate(llm, prompt_ids or text, messages, params, terminal)
            _report(generation, llm, chosen["max_new_tokens"], draft is not None or draft_tokens is not None, terminal)


COMMAND = Command(
    "run",
    "Generate text from an artifact, or chat with it when no prompt is given. The text streams to standard output; the "
    "speed goes to standard error.",
    _run,
    ARTIFACT,
    *PROMPTS,
    *SAMPLING,
    *DRAFTS,
    ENGINE_NAME,
    *options_of(EngineOptions),
    CHECK,
    JSON,
    QUIET,
)


def _messages(system: str | None, message: str) -> list[dict[str, str]]:
    first = [] if system is None else [{"role": "system", "content": system}]
    return [*first, {"role": "user", "content": message}]


def _generate(
    llm: LLM,
    prompt: str | Sequence[int] | None,
    messages: list[dict[str, str]] | None,
    sampling: SamplingParams,
    terminal: Terminal,
) -> Generation:
    """Stream the text; returns the whole generation. Interrupted at Ctrl-C after some of it was printed."""
    pieces: Any
    if messages is not None:
        pieces = llm.chat(messages, sampling, stream=True)
    else:
        pieces = llm.generate(prompt, sampling, stream=True)
    generation, times, started = None, [], time.perf_counter()
    try:
        for piece in pieces:
            times += [time.perf_counter() - started] * len(piece.token_ids)
            terminal.write(piece.text)
            generation = piece.generation or generation
    except KeyboardInterrupt:
        if not times or terminal.as_json:
            raise
        terminal.write("\n")
        terminal.remark(interruption_summary(times, llm.engine.name))
        raise Interrupted("the answer is not complete") from None
    terminal.write("\n")
    assert generation is not None
    return generation


def _report(generation: Generation, llm: LLM, max_new_tokens: int, speculates: bool, terminal: Terminal) -> None:
    """Remarks on standard error, and the JSON document."""
    document = generation_document(generation, max_new_tokens, llm)
    terminal.remark(generation_summary(generation, llm.engine.name))
    drafts = llm.loop.speculation if speculates else None
    if drafts is not None:
        terminal.remark(draft_summary(drafts))
        document["speculation"] = drafts.to_json()
    terminal.notes(document["notes"])
    terminal.document(document)
